"""The mutants that mutmut doesn't make: of tables, thresholds and defaults, and of properties.

mutmut changes the bodies of functions and of plain methods. What a module or a class says outside of them (``MOVES``,
``WINDOW_S``, a field's default), what a function's argument is without being given, and bodies of properties it leaves
as they are; and that is where most of the rules' numbers stand. Words stay: an API's words are its reference's.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

#: Imported once, in the process that the others are forked from; nothing of the project's is.
PRELOADED = ("attrs", "hypothesis.stateful", "msgspec", "orjson", "pytest_asyncio", "pytest_trio", "sqlalchemy", "trio")
#: What one mutant's tests may take, seconds; one that takes longer is stuck, and that is noticed.
STUCK_S = 120

FLIPPED: dict[type[ast.AST], ast.AST] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
    ast.And: ast.Or(),
    ast.Or: ast.And(),
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
}


class Mutant(NamedTuple):
    """One change: the lines that it changes, before and after, and the whole text."""

    line: int
    was: str
    now: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    places = [place for root in _roots(ast.parse(source)) for place in ast.walk(root)]
    for place in sorted(places, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))):
        for changed in _changes(place):
            mutated = _replace(source, place, changed)
            if mutated != source:
                yield _told(source, mutated)


def _roots(module: ast.Module) -> Iterator[ast.AST]:
    """The parts that are changed here; each stands in one root only."""
    for statement in module.body:
        yield from _roots_of(statement)


def _roots_of(statement: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        named = ast.unparse(statement.targets[0] if isinstance(statement, ast.Assign) else statement.target)
        if statement.value is not None and named != "__all__":
            yield statement.value
    elif isinstance(statement, ast.FunctionDef):
        yield from statement.args.defaults
        yield from (default for default in statement.args.kw_defaults if default is not None)
        if any(isinstance(decorator, ast.Name) for decorator in statement.decorator_list):
            yield from statement.body
    elif isinstance(statement, ast.ClassDef):
        for inner in statement.body:
            yield from _roots_of(inner)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    changed = copy.deepcopy(node)
    match changed:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Compare(ops=[operator]):
            changed.ops = [FLIPPED[type(operator)]]  # type: ignore[list-item]
            yield changed
        case ast.BoolOp() | ast.BinOp() if type(changed.op) in FLIPPED:
            changed.op = FLIPPED[type(changed.op)]  # type: ignore[assignment]
            yield changed
        case ast.UnaryOp(op=ast.Not()):
            yield changed.operand
        case ast.IfExp():
            changed.body, changed.orelse = changed.orelse, changed.body
            yield changed
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Set():
            for left_out in range(len(changed.elts)):
                kept = [element for number, element in enumerate(changed.elts) if number != left_out]
                yield ast.Set(kept) if kept else ast.Call(ast.Name("set"), [], [])
        case ast.Dict():
            for left_out in range(len(changed.keys)):
                entries = [pair for number, pair in enumerate(zip(changed.keys, changed.values, strict=True))
                           if number != left_out]  # fmt: skip
                yield ast.Dict([key for key, _ in entries], [value for _, value in entries])


def _replace(source: str, node: ast.AST, changed: ast.AST) -> str:
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    before = b"".join(lines[:first]) + lines[first][: node.col_offset]  # type: ignore[attr-defined]
    after = lines[last][node.end_col_offset :] + b"".join(lines[last + 1 :])  # type: ignore[attr-defined]
    text = ast.unparse(ast.fix_missing_locations(changed))
    return (before + (text if isinstance(changed, ast.stmt) else f"({text})").encode() + after).decode()


def _told(source: str, mutated: str) -> Mutant:
    """What differs: for a person, and to find the same mutant again when lines have moved."""
    old, new = source.splitlines(), mutated.splitlines()
    start = next(number for number, line in enumerate(old) if number >= len(new) or line != new[number])
    end = next(back for back in range(1, len(old) + 1) if old[-back] != new[-back]) - 1
    was = " ".join(line.strip() for line in old[start : len(old) - end])
    now = " ".join(line.strip() for line in new[start : len(new) - end])
    return Mutant(start + 1, was, now, mutated)


class _Served(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Gives a module another text than its file's."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self._module, self._path, self._source = module, path, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(self._path))

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_source(self, fullname: str) -> str:
        return self._source


def survives(tree: Path, file: str, mutant: Mutant | None, pytest_arguments: Sequence[str]) -> bool:
    """Whether the tests pass all the same; they run in a process of their own. None changes nothing."""
    for name in PRELOADED:
        importlib.import_module(name)
    import pytest

    child = os.fork()
    if child == 0:
        signal.alarm(STUCK_S)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        sys.dont_write_bytecode = True
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        code = 1
        try:
            if mutant is not None:
                module = file.removesuffix(".py").replace("/", ".")
                sys.meta_path.insert(0, _Served(module, tree / file, mutant.source))
            code = int(pytest.main(list(pytest_arguments)))
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0
