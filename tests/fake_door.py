"""A door in memory: enough of the HTTP interface for tests of the client and the CLI. No ledger, no workers.

``answer`` maps a request to an answer; it stands behind ``httpx.MockTransport`` or, for the CLI, behind a real server
on loopback (``served``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from swarm.content.cid import build
from swarm.content.manifest import ContentRef, Manifest, UrlOutcome, encode_manifest

KEY = "key-of-alice"
WORKER, OTHER = "0x" + "a1" * 20, "0x" + "b2" * 20


def task_id(number: int) -> str:
    return f"01920000-0000-7000-8000-{number:012d}"


class FakeDoor:
    """Tasks are ended by hand: ``finish`` and ``fail``."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.blocks: dict[str, bytes] = {}
        self.answered: dict[str, bytes] = {}
        #: Task → its receipt.
        self.receipts: dict[str, dict[str, Any]] = {}
        #: What alice may spend.
        self.account: dict[str, Any] = {"owner": "alice", "role": "requester"}
        #: (method, path) of every request.
        self.requests: list[tuple[str, str]] = []
        #: Answers to give before anything else: a status with an error, or an exception to raise; consumed in order.
        self.faults: list[tuple[int, dict[str, Any]] | Exception] = []
        #: Called with each job that is asked for, so that time goes by.
        self.on_look: Callable[[str], object] = lambda job: None
        #: Called with the CID of each content that is asked for.
        self.on_content: Callable[[str], object] = lambda cid: None
        #: Called with the number of tasks of each submission that was taken.
        self.on_submit: Callable[[int], object] = lambda count: None

    # ── what tests do ───────────────────────────────────────────────────────────────────────────────────────────

    def store(self, data: bytes) -> ContentRef:
        dag = build(data)
        self.blocks.update(dag.blocks)
        return ContentRef(cid=dag.root, size_bytes=len(data))

    def finish(self, task: str, *records: dict[str, Any], body: bytes | None = None) -> str:
        found = self.tasks[task]
        lines = b"".join(json.dumps(record).encode() + b"\n" for record in records)
        outcome = UrlOutcome(
            url=found["urls"][0],
            status=200,
            headers={"content-type": "text/html"},
            body=self.store(body) if body is not None else None,
            records=self.store(lines) if records else None,
            record_count=len(records) or None,
        )
        manifest = Manifest(task=task, worker=WORKER, kind=found["kind"], outcomes=(outcome,))
        found["status"], found["result"] = "completed", self.store(encode_manifest(manifest)).cid
        found["assignee"], found["via"] = WORKER, "offer"
        return str(found["result"])

    def fail(self, task: str, reason: str) -> None:
        self.tasks[task] |= {"status": "failed", "reason": reason}

    def transport(self) -> httpx.MockTransport:
        def handle(request: httpx.Request) -> httpx.Response:
            status, body = self.answer(
                request.method, str(request.url.raw_path, "ascii"), dict(request.headers), request.content
            )
            return httpx.Response(status, content=body)

        return httpx.MockTransport(handle)

    @contextlib.contextmanager
    def served(self) -> Iterator[str]:
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("content-length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, body = door.answer(self.command, self.path, headers, self.rfile.read(length))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that hangs up is nothing to print about; a fault of ours shows in its missing answer."""

        with Server(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    # ── what the door does ──────────────────────────────────────────────────────────────────────────────────────

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        path, query = urlsplit(target).path, dict(parse_qsl(urlsplit(target).query))
        self.requests.append((method, path))
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault[0], json.dumps({"error": fault[1]}).encode()
        if headers.get("authorization") != f"Bearer {KEY}":
            return _error(401, "unauthorized", "this key isn't one of this swarm")
        match [method, *path.strip("/").split("/")]:
            case ["POST", "v1", "tasks"]:
                return self._submit(headers["idempotency-key"], body)
            case ["GET", "v1", "account"]:
                return _data(self.account)
            case ["GET", "v1", "jobs"]:
                return self._page([self.answer_job(job) for job in reversed(self.jobs)], query)
            case ["GET", "v1", "jobs", job] if job in self.jobs:
                self.on_look(job)
                return _data(self.answer_job(job))
            case ["GET", "v1", "jobs", job, "results"] if job in self.jobs:
                ended = [task for task in self.tasks.values() if task["job"] == job and task["status"] != "pending"]
                rows = [{**task, "task": task["id"]} for task in ended]
                return self._page(rows, query)
            case ["GET", "v1", "tasks"]:
                found = self.tasks.values()
                rows = [task for task in found if query.get("job", task["job"]) == task["job"]]
                return self._page(
                    [task for task in rows if query.get("status", task["status"]) == task["status"]], query
                )
            case ["GET", "v1", "tasks", task] if task in self.tasks:
                return _data(self.tasks[task])
            case ["GET", "v1", "tasks", task, "events"] if task in self.tasks:
                event = {"id": 1, "task": task, "seq": 1, "to": "pending", "by": "requester", "at": 1.0}
                return self._page([{**event, "move": "submitted"}], query)
            case ["GET", "v1", "tasks", task, "receipt"] if task in self.receipts:
                return _data(self.receipts[task])
            case ["GET", "v1", "tasks", task, "why"] if task in self.tasks:
                paced = {"code": "host_paced", "message": "site takes 1 request/s", "retry_after_s": 3.0}
                workers = [{"worker": WORKER, "instance": "i", "refusal": paced}, {"worker": OTHER, "instance": "j"}]
                message = "a live worker may have it"
                why = {"task": task, "status": "pending", "message": message, "live_workers": 2}
                return _data({**why, "workers": workers})
            case ["POST", "v1", "jobs", job, "cancel" | "replay" as verb] if job in self.jobs:
                return _data({"job": job, "changed": self._change([*self.tasks], verb)})
            case ["POST", "v1", "tasks", task, "cancel" | "replay" as verb] if task in self.tasks:
                self._change([task], verb)
                return _data({"task": task, "fence": 0, "status": self.tasks[task]["status"]})
            case ["GET", "v1", "content", cid] if cid in self.blocks:
                self.on_content(cid)
                return 200, self.blocks[cid]
            case _:
                return _error(404, "not_found", f"there is no {path}, or it isn't yours")

    def _change(self, tasks: list[str], verb: str) -> int:
        source, to = {"cancel": ("pending", "cancelled"), "replay": ("failed", "pending")}[verb]
        moved = [task for task in tasks if self.tasks[task]["status"] == source]
        for task in moved:
            self.tasks[task]["status"] = to
        return len(moved)

    def _submit(self, key: str, body: bytes) -> tuple[int, bytes]:
        digest = f"{key}/{hashlib.sha256(body).hexdigest()}"
        if digest in self.answered:
            return 200, self.answered[digest]
        submission = json.loads(body)
        job = submission.get("job") or f"01930000-0000-7000-8000-{len(self.jobs):012d}"
        self.jobs.setdefault(
            job,
            {
                "name": submission.get("name"),
                "budget_wei": submission.get("budget_wei"),
                "settle": submission.get("settle"),
            },
        )
        known = {task["urls"][0]: task["id"] for task in self.tasks.values() if task["job"] == job}
        results = []
        for new in submission["tasks"]:
            url = new["urls"][0]
            results.append({"id": known.get(url), "status": "duplicate" if url in known else "created"})
            if url not in known:
                known[url] = results[-1]["id"] = task_id(len(self.tasks))
                base = {"priority": 5, "tier": "bulk", "host": urlsplit(url).netloc, "status": "pending"}
                own = {"id": known[url], "job": job, "owner": "alice", "created_at": 1.0}
                self.tasks[known[url]] = {**base, **new, **own}
        self.on_submit(len(results))
        self.answered[digest] = _data({"job": job, "tasks": results})[1]
        return 200, self.answered[digest]

    def answer_job(self, job: str) -> dict[str, Any]:
        statuses = [task["status"] for task in self.tasks.values() if task["job"] == job]
        counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
        common = {"id": job, "owner": "alice", "created_at": 1.0, "name": self.jobs[job]["name"]}
        return {**common, "total": len(statuses), "counts": counts, "done": "pending" not in counts}

    def _page(self, rows: list[dict[str, Any]], query: dict[str, str]) -> tuple[int, bytes]:
        start, limit = int(query.get("cursor", 0)), int(query["limit"])
        following = str(start + limit) if start + limit < len(rows) else None
        return _data({"items": rows[start : start + limit], "next": following})


def _data(data: Any) -> tuple[int, bytes]:
    return 200, json.dumps({"data": data}).encode()


def _error(status: int, code: str, message: str) -> tuple[int, bytes]:
    return status, json.dumps({"error": {"code": code, "message": message}}).encode()
