"""``/openapi.json`` and ``/docs``: derived from the route table and the structs, never written by hand."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import orjson

from rendezvous.door.call import ANYONE, Query, Route
from rendezvous.door.envelope import STATUS_OF
from swarm import __version__
from swarm.wire import ErrorBody

__all__ = ["docs_page", "openapi"]

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"


def openapi(routes: Sequence[Route]) -> bytes:
    """The OpenAPI 3.1 document of a route table."""
    shapes = {shape for route in routes for shape in (route.body, route.answer, route.item) if shape is not None}
    ordered = sorted(shapes | {ErrorBody}, key=lambda shape: shape.__name__)
    refs, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    schema_of = dict(zip(ordered, refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Task swarm: the door",
            "version": __version__,
            "description": "Answers are {'data': …} or {'error': {code, message, retry_after_s?, details?}}.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _error_schema(schema_of)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    return orjson.dumps(document)


def _error_schema(schema_of: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    codes = sorted(code.value for code in STATUS_OF)
    return {
        "type": "object",
        "required": ["error"],
        "description": f"`error.code` is one of: {', '.join(codes)}.",
        "properties": {"error": schema_of[ErrorBody]},
    }


def _operation(route: Route, schema_of: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.handler.__name__,
        "responses": {
            str(route.status): {"description": "as asked", "content": _content(route, schema_of)},
            "default": {
                "description": "refused",
                "content": {_JSON: {"schema": {"$ref": _REF.format(name="Error")}}},
            },
        },
    }
    if route.who != ANYONE:
        operation["security"] = [{"key": []}]
        operation["description"] = f"For keys of: {', '.join(sorted(route.who))}."
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _path_names(route.path)
    ]
    parameters += [_parameter(query, "query") for query in route.queries]
    parameters += [_parameter(query, "header") for query in route.headers]
    if parameters:
        operation["parameters"] = parameters
    if route.raw:
        operation["requestBody"] = {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}}
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {_JSON: {"schema": schema_of[route.body]}},
        }
    return operation


def _content(route: Route, schema_of: dict[type[msgspec.Struct], dict[str, Any]]) -> dict[str, Any]:
    if route.media is not None:
        return {route.media: {}}
    if route.answer is None:
        return {_JSON: {}}
    if route.enveloped:
        return {_JSON: {"schema": schema_of[route.answer]}}
    shape = schema_of[route.answer]
    if route.item is not None:
        shape = {
            "type": "object",
            "required": ["items"],
            "properties": {
                "items": {"type": "array", "items": schema_of[route.item]},
                "next": {"type": ["string", "null"]},
            },
        }
    return {_JSON: {"schema": {"type": "object", "required": ["data"], "properties": {"data": shape}}}}


def _path_names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _parameter(query: Query, where: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "maxLength": 256}
    if query.at_most is not None:
        schema = {"type": "integer", "minimum": query.at_least, "maximum": query.at_most}
        if query.default is not None:
            schema["default"] = query.default
    elif query.choices:
        schema = {"type": "string", "enum": list(query.choices)}
    return {
        "name": query.name,
        "in": where,
        "required": query.required,
        "description": query.help,
        "schema": schema,
    }


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ccc}}
code{{font-size:.9em}}@media (prefers-color-scheme:dark){{body{{background:#111;color:#ddd}}a{{color:#8cf}}}}</style>
</head><body><h1>{title}</h1>{body}</body></html>
"""


def page(title: str, body: str) -> str:
    """A page in the door's plain look; ``body`` is HTML."""
    return _PAGE.format(title=html.escape(title), body=body)


def docs_page(routes: Sequence[Route]) -> str:
    """What a person reads: every call, who may make it, what it does; and the refusals."""
    calls = "".join(
        f"<tr><td><code>{route.method}&nbsp;{html.escape(route.path)}</code></td>"
        f"<td>{html.escape(', '.join(sorted(route.who)) or 'anyone')}</td><td>{html.escape(route.summary)}</td></tr>"
        for route in routes
    )
    codes = "".join(
        f"<tr><td><code>{code.value}</code></td><td>{status}</td></tr>" for code, status in sorted(STATUS_OF.items())
    )
    return page(
        "Task swarm: the door",
        "<p>Answers are <code>{&quot;data&quot;: …}</code> or <code>{&quot;error&quot;: {code, message}}</code>. "
        "Send your key as <code>Authorization: Bearer KEY</code>. "
        "Machine-readable: <a href='openapi.json'>openapi.json</a>.</p>"
        f"<h2>Calls</h2><table><tr><th>Call</th><th>Key</th><th>Does</th></tr>{calls}</table>"
        f"<h2>Refusals</h2><table><tr><th>Code</th><th>Status</th></tr>{codes}</table>",
    )
