"""The one route table: every call of the door, who may make it, what goes in and out.

``app.py`` builds the server from it, ``openapi.py`` the documentation; a test holds that both tell the same.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from rendezvous.door import (
    account,
    admin,
    calls,
    content,
    enrol,
    pages,
    policy,
    queue,
    receipt,
    robots,
    session,
    site,
    status,
    stream,
    submit,
    tasks,
    workers,
)
from rendezvous.door.call import Call, Query, Route
from rendezvous.door.openapi import docs_page, openapi
from rendezvous.door.resources import Door
from swarm.model import Role, Status
from swarm.turn_wire import Grant, Outcome, Turn, TurnAnswer
from swarm.wire import (
    MAX_SUBMISSION_BYTES,
    MAX_TURN_BYTES,
    AccountView,
    Enrolled,
    Enrolment,
    EventView,
    JobView,
    Page,
    Receipt,
    ResultView,
    RobotsAnswer,
    SignedSettings,
    Submission,
    Submitted,
    TaskView,
)

__all__ = ["ROUTES"]

_WORKER: Final = frozenset({Role.WORKER})
_OPERATOR: Final = frozenset({Role.OPERATOR})
_OWNER: Final = frozenset({Role.REQUESTER, Role.OPERATOR})
_ANY_KEY: Final = frozenset(Role)
_PAGED: Final = (tasks.LIMIT, tasks.CURSOR)
_HTML: Final = "text/html"


async def openapi_json(door: Door, call: Call) -> web.Response:
    """The machine-readable description."""
    del door, call
    return web.Response(body=openapi(ROUTES), content_type="application/json")


async def docs(door: Door, call: Call) -> web.Response:
    """The description for people."""
    del door, call
    return web.Response(text=docs_page(ROUTES), content_type=_HTML, headers=pages.HEADERS)


ROUTES: Final[tuple[Route, ...]] = (
    # ── for everybody ───────────────────────────────────────────────────────────────────────────────────────────
    Route(
        method="GET",
        path="/settings",
        summary="Where the swarm is: signed by its key, all that a worker needs beside the one URL.",
        handler=site.settings,
        answer=SignedSettings,
        enveloped=True,
    ),
    Route(
        method="POST",
        path="/v1/enrolments",
        summary="Enrol a worker: EIP-712 over the challenge, co-signed by the libp2p key; answers its API key.",
        handler=enrol.enrol,
        body=Enrolment,
        answer=Enrolled,
        status=201,
    ),
    Route(method="GET", path="/healthz", summary="The process answers.", handler=status.healthz,
          answer=status.Health, limited=False),
    Route(method="GET", path="/readyz", summary="The root can take work.", handler=status.readyz,
          answer=status.Health, limited=False),
    Route(method="GET", path="/openapi.json", summary="This description.", handler=openapi_json,
          media="application/json"),
    Route(method="GET", path="/docs", summary="This description, for people.", handler=docs, media=_HTML),
    Route(method="GET", path="/", summary="What this is.", handler=pages.start, media=_HTML),
    Route(method="GET", path="/join", summary="What to do with a join link.", handler=pages.join, media=_HTML),
    # ── for requesters ──────────────────────────────────────────────────────────────────────────────────────────
    Route(
        method="POST",
        path="/v1/tasks",
        summary="Submit up to 1,000 tasks or 4 MiB of one job; per task created, or duplicate of which.",
        handler=submit.submit,
        who=_OWNER,
        body=Submission,
        answer=Submitted,
        max_body_bytes=MAX_SUBMISSION_BYTES,
        headers=(submit.IDEMPOTENCY_KEY,),
    ),
    Route(
        method="GET",
        path="/v1/tasks",
        summary="Your tasks, page by page.",
        handler=tasks.tasks,
        who=_OWNER,
        answer=Page,
        item=TaskView,
        queries=(
            Query(name="job", help="Only tasks of this job."),
            Query(name="status", help="Only tasks of this status.", choices=tuple(one.value for one in Status)),
            *_PAGED,
        ),
    ),
    Route(method="GET", path="/v1/tasks/{id}", summary="One task.", handler=tasks.task, who=_OWNER, answer=TaskView),
    Route(method="GET", path="/v1/tasks/{id}/events", summary="A task's history, the oldest first.",
          handler=tasks.task_events, who=_OWNER, answer=Page, item=EventView, queries=_PAGED),
    Route(method="GET", path="/v1/tasks/{id}/why", summary="Why it isn't running: each live worker's refusal.",
          handler=tasks.why, who=_OWNER, answer=tasks.WhyView),
    Route(method="GET", path="/v1/tasks/{id}/receipt", summary="What its worker signed, and the root's acceptance.",
          handler=receipt.receipt, who=_ANY_KEY, answer=Receipt),
    Route(method="POST", path="/v1/tasks/{id}/cancel", summary="Call a task off; its holder is told at once.",
          handler=tasks.cancel_task, who=_OWNER, answer=Outcome),
    Route(method="POST", path="/v1/tasks/{id}/replay", summary="Give a failed task a new life.",
          handler=tasks.replay_task, who=_OWNER, answer=Outcome),
    Route(method="GET", path="/v1/jobs", summary="Your jobs, the newest first.", handler=tasks.jobs, who=_OWNER,
          answer=Page, item=JobView, queries=_PAGED),
    Route(method="GET", path="/v1/jobs/{id}", summary="How far a job is.", handler=tasks.job, who=_OWNER,
          answer=JobView),
    Route(method="GET", path="/v1/jobs/{id}/results", summary="The ended tasks of a job: results by CID.",
          handler=tasks.results, who=_OWNER, answer=Page, item=ResultView, queries=_PAGED),
    Route(method="POST", path="/v1/jobs/{id}/cancel", summary="Call off what of a job hasn't ended.",
          handler=tasks.cancel_job, who=_OWNER, answer=tasks.JobChanged),
    Route(method="POST", path="/v1/jobs/{id}/replay", summary="Replay the failed tasks of a job.",
          handler=tasks.replay_job, who=_OWNER, answer=tasks.JobChanged),
    Route(method="GET", path="/v1/account", summary="What you may spend on rewards, and what the chain asks for.",
          handler=account.account, who=_OWNER, answer=AccountView),
    Route(method="GET", path="/v1/content/{cid}", summary="One block by its CID, raw.", handler=content.content,
          who=_OWNER, media="application/vnd.ipld.raw"),
    Route(
        method="GET",
        path="/v1/events",
        summary="Your tasks' history as it is written: server-sent events; resumes from Last-Event-ID.",
        handler=stream.events,
        who=_ANY_KEY,
        media="text/event-stream",
        queries=(
            Query(name="job", help="Only events of this job."),
            Query(name="task", help="Only events of this task."),
            Query(name="after", help="As Last-Event-ID, where a header can't be set."),
        ),
        headers=(Query(name="Last-Event-ID", help="The id of the last event that arrived."),),
    ),
    # ── for workers ─────────────────────────────────────────────────────────────────────────────────────────────
    Route(method="GET", path="/v1/session", summary="Turns over a WebSocket; the door may speak first.",
          handler=session.session, who=_WORKER, status=101),
    Route(method="POST", path="/v1/turns", summary="One turn.", handler=session.turns, who=_WORKER, body=Turn,
          answer=TurnAnswer, max_body_bytes=MAX_TURN_BYTES),
    Route(method="POST", path="/v1/tasks/{id}/claim", summary="Claim one task.", handler=calls.claim, who=_WORKER,
          body=calls.Claim, body_optional=True, answer=Grant),
    Route(method="POST", path="/v1/tasks/{id}/complete", summary="Report a task's result.", handler=calls.complete,
          who=_WORKER, body=calls.Complete, answer=Outcome),
    Route(method="POST", path="/v1/tasks/{id}/fail", summary="Report that a task failed.", handler=calls.fail,
          who=_WORKER, body=calls.Fail, answer=Outcome),
    Route(method="POST", path="/v1/tasks/{id}/release", summary="Give a lease back, uncounted.",
          handler=calls.release, who=_WORKER, body=calls.Release, answer=Outcome),
    Route(method="GET", path="/v1/robots", summary="The rules of an origin's robots.txt for our agent.",
          handler=robots.robots, who=_WORKER, answer=RobotsAnswer,
          queries=(Query(name="origin", help="Such as https://example.com.", required=True),)),
    # ── for operators ───────────────────────────────────────────────────────────────────────────────────────────
    Route(method="GET", path="/v1/workers", summary="The nodes: state, slots, what they counted.",
          handler=workers.workers, who=_OPERATOR, answer=Page, item=workers.WorkerView, queries=_PAGED),
    Route(method="GET", path="/v1/workers/{id}", summary="One node.", handler=workers.worker, who=_OPERATOR,
          answer=workers.WorkerDetail),
    Route(method="DELETE", path="/v1/workers/{id}", summary="Take a node off the list; its work is requeued.",
          handler=workers.remove_worker, who=_OPERATOR, answer=workers.Removed,
          queries=(Query(name="why", help="The reason, kept with who did it."),)),
    Route(method="GET", path="/v1/status", summary="Totals of the swarm.", handler=status.status, who=_OPERATOR,
          answer=status.StatusView),
    Route(method="GET", path="/v1/queue", summary="What waits, for how long, and for which hosts.",
          handler=queue.queue, who=_OPERATOR, answer=queue.QueueView),
    Route(method="POST", path="/v1/queue/import", summary="Submit an export: JSON lines, each with its owner and job.",
          handler=queue.import_queue, who=_OPERATOR, raw=True, answer=queue.Imported,
          max_body_bytes=MAX_SUBMISSION_BYTES),
    Route(method="GET", path="/v1/queue/export", summary="The pending tasks as JSON lines.",
          handler=queue.export_queue, who=_OPERATOR, media="application/jsonl"),
    Route(method="GET", path="/v1/alerts", summary="What the operator should know now, and what to do about it.",
          handler=status.alerts, who=_OPERATOR, answer=Page, item=status.AlertView),
    Route(method="POST", path="/v1/admin/pause", summary="Grant nothing any more of a host, a job, or the swarm.",
          handler=admin.pause, who=_OPERATOR, body=admin.PauseCall, answer=admin.PauseView),
    Route(method="POST", path="/v1/admin/resume", summary="End a pause.",
          handler=admin.resume, who=_OPERATOR, body=admin.ResumeCall, answer=admin.Resumed),
    Route(method="POST", path="/v1/admin/quarantine", summary="Keep a worker off a host; its leases there go back.",
          handler=admin.quarantine, who=_OPERATOR, body=admin.QuarantineCall, answer=admin.QuarantineView),
    Route(method="POST", path="/v1/admin/unquarantine", summary="Let a worker have tasks of a host again.",
          handler=admin.unquarantine, who=_OPERATOR, body=admin.UnquarantineCall, answer=admin.Unquarantined),
    Route(method="POST", path="/v1/admin/approve-version", summary="Pin a version: only pinned ones are granted tasks.",
          handler=admin.approve, who=_OPERATOR, body=admin.ApproveCall, answer=admin.Approved),
    Route(method="POST", path="/v1/admin/fail", summary="Fail tasks by hand: dead letters, or with retry waiting.",
          handler=admin.fail_tasks, who=_OPERATOR, body=admin.FailCall, answer=admin.FailedTasks),
    Route(method="POST", path="/v1/admin/revoke", summary="Revoke all keys of an owner; its workers' sessions end.",
          handler=admin.revoke, who=_OPERATOR, body=admin.RevokeCall, answer=admin.RevokedView),
    Route(method="POST", path="/v1/admin/admit", summary="Let a revoked worker's address enrol again.",
          handler=admin.admit, who=_OPERATOR, body=admin.AdmitCall, answer=admin.Admitted),
    Route(method="POST", path="/v1/admin/apart", summary="Keep workers of one network apart on a host.",
          handler=policy.apart, who=_OPERATOR, body=policy.ApartCall, answer=policy.ApartView),
    Route(method="GET", path="/v1/admin/policy", summary="Quarantines, profiles, and how versions fare.",
          handler=policy.policy, who=_OPERATOR, answer=policy.PolicyView, queries=_PAGED),
    Route(method="GET", path="/v1/admin/acts", summary="What operators did, the newest first: who, what, why, when.",
          handler=admin.acts, who=_OPERATOR, answer=Page, item=admin.ActView, queries=_PAGED),
    Route(method="GET", path="/metrics", summary="For Prometheus.", handler=status.metrics, who=_OPERATOR,
          media="text/plain"),
)  # fmt: skip
