"""The commands of ``swarm-root`` that ask the running root: pause, quarantine, pin, fail, revoke, and their undoing.

Each is one call of the door with the operator's key of the data directory, or with that of ``--key-file`` where the
root runs elsewhere: the directory's key goes to the directory's door alone. Nothing here opens the ledger.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rendezvous.command import duration_of, find, options, settings_of
from rendezvous.help import Command
from rendezvous.settings import Bind
from swarm.certificates import PLAIN, plain_hint, speaks_plain_http
from swarm.door_address import door_address, key_line
from swarm.errors import ConfigurationError, DoorRefused, DoorUnreachable, MalformedInput
from swarm.reasons import reason_of

if TYPE_CHECKING:
    import httpx

__all__ = ["COMMANDS"]

#: An operator's call is one transaction of the ledger.
TIMEOUT_S: Final = 30.0
#: What one import carries at most: below the door's own caps.
PIECE_LINES: Final = 5_000
PIECE_BYTES: Final = 3 * 1024 * 1024


def _where(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of all of these: which root, whose key."""
    url = click.option("--url", help="the door's URL; by default where this data directory's root ran last")
    key_file = click.option(
        "--key-file",
        type=click.Path(path_type=Path),
        help="an operator's key; by default the data directory's, for its own door",
    )
    return options("data")(url(key_file(function)))


_why = click.option("--why", required=True, metavar="TEXT", help="the reason, kept in the history and shown by why")


def _ask(
    given: dict[str, Any], method: str, path: str, body: dict[str, Any] | None = None, *, query: str = ""
) -> dict[str, Any]:
    """Call the door; its answer's ``data``.

    Raises:
        ConfigurationError: there is no root or key where one was looked for.
        DoorUnreachable: the root doesn't run, or can't be reached.
        DoorRefused: it said no.
    """
    url, key = _door_of(given)
    return _request(method, url, path + query, key, json=body)


def _client(url: str, key: str) -> httpx.Client:
    import httpx

    from swarm.certificates import trust_certificates

    return httpx.Client(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=TIMEOUT_S,
        verify=trust_certificates(),
        # A proxy of the environment can't reach our own loopback.
        trust_env=not Bind(host=httpx.URL(url).host, port=0).is_loopback,
    )


def _request(method: str, url: str, path: str, key: str, **how: Any) -> dict[str, Any]:
    import httpx

    try:
        with _client(url, key) as client:
            answer = client.request(method, path, **how)
    except httpx.HTTPError as fault:
        raise _unreachable(url, fault) from fault
    return _data_of(answer, url)


def _unreachable(url: str, fault: Exception) -> DoorUnreachable:
    if speaks_plain_http(fault):
        return DoorUnreachable(url, PLAIN, hint=plain_hint(url))
    hint = "is the root running? --url says where else it is"
    return DoorUnreachable(url, reason_of(fault), hint=hint)


def _data_of(answer: httpx.Response, url: str) -> dict[str, Any]:
    try:
        said = answer.json()
        if answer.is_success:
            data: dict[str, Any] = said["data"]
            return data
        error = said["error"]
        raise DoorRefused(error["code"], error["message"], status=answer.status_code)
    except (ValueError, KeyError, TypeError) as fault:
        raise MalformedInput(f"{url} answered {answer.status_code} and isn't a door of this swarm") from fault


def _door_of(given: dict[str, Any]) -> tuple[str, str]:
    from swarm.content.urls import is_same

    url, key_file = given.pop("url"), given.pop("key_file")
    url = None if url is None else door_address(url)
    settings = settings_of(given)
    if url is None or key_file is None:
        directory = find(settings)
        its_door = directory.swarm.url
        if url is not None and (its_door is None or not is_same(url, its_door)):
            whose = its_door or "a root that never ran"
            raise ConfigurationError(
                f"no key for {url} was given: the one in {directory.path} is for {whose}; nothing was sent",
                hint=f"--key-file names an operator's key; where it is one root: {directory.operator_key_file}",
            )
        url = url or its_door
        key_file = key_file or directory.operator_key_file
    if url is None:
        raise ConfigurationError("the root never ran, so where its door is isn't known", hint="give --url")
    try:
        return url.rstrip("/"), key_line(key_file.read_text(errors="replace"))
    except OSError as fault:
        raise ConfigurationError(f"{key_file}: {fault.strerror}", hint="--key-file names an operator's key") from fault


_host_or_job = (
    click.option("--host", help="only the tasks of this site"),
    click.option("--job", help="only the tasks of this job"),
)


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_host_or_job):
        function = option(function)
    return function


@click.command(
    cls=Command,
    examples=[
        ("everything", 'swarm-root pause --why "the network is being repaired"'),
        ("one site", 'swarm-root pause --host example.com --why "its owner called"'),
        ("one job", 'swarm-root pause --job JOB --why "wrong selector"'),
    ],
)
@_of
@_why
@_where
def pause(host: str | None, job: str | None, why: str, **given: Any) -> None:
    """Grant nothing any more: of the swarm, a host or a job. What workers hold already they may finish."""
    answer = _ask(given, "POST", "/v1/admin/pause", {"host": host, "job": job, "why": why})
    ending = f" --{answer['scope']} {answer['name']}" if answer.get("name") else ""
    click.echo(f"paused: {_named(answer)}; swarm-root resume{ending} ends it")


@click.command(
    cls=Command,
    examples=[("everything", "swarm-root resume"), ("one site", "swarm-root resume --host example.com --why solved")],
)
@_of
@click.option("--why", default="", metavar="TEXT", help="the reason, kept in the history")
@_where
def resume(host: str | None, job: str | None, why: str, **given: Any) -> None:
    """End a pause of the swarm, a host or a job."""
    answer = _ask(given, "POST", "/v1/admin/resume", {"host": host, "job": job, "why": why})
    click.echo(f"resumed: {_named(answer)}")


def _named(answer: dict[str, Any]) -> str:
    return " ".join(part for part in (answer["scope"], answer.get("name")) if part)


@click.command(
    cls=Command,
    examples=[
        ("for the usual half hour", 'swarm-root quarantine 0x71C… example.com --why "it is being blocked"'),
        ("for a day", 'swarm-root quarantine 0x71C… example.com --for 1d --why "its address is listed"'),
    ],
)
@click.argument("worker")
@click.argument("host")
@click.option("--for", "for_", default="30m", show_default=True, help="how long")
@_why
@_where
def quarantine(worker: str, host: str, for_: str, why: str, **given: Any) -> None:
    """Keep WORKER (its address; ADDRESS:INSTANCE where it has several) off HOST; what it holds of it goes back."""
    body = {"worker": worker, "host": host, "for_s": duration_of(for_, "--for"), "why": why}
    answer = _ask(given, "POST", "/v1/admin/quarantine", body)
    requeued = answer.get("requeued", 0)
    click.echo(f"{answer['worker']} gets nothing of {answer['host']}; tasks that wait again: {requeued}")


@click.command(
    cls=Command, examples=[("a worker that a site takes again", "swarm-root unquarantine 0x71C… example.com")]
)
@click.argument("worker")
@click.argument("host")
@click.option("--why", default="", metavar="TEXT", help="the reason, kept in the history")
@_where
def unquarantine(worker: str, host: str, why: str, **given: Any) -> None:
    """Let WORKER have tasks of HOST again before its quarantine ends."""
    answer = _ask(given, "POST", "/v1/admin/unquarantine", {"worker": worker, "host": host, "why": why})
    click.echo(f"{answer['worker']} may have tasks of {answer['host']} again")


@click.command(
    cls=Command,
    examples=[
        ("one worker of a network at a time", 'swarm-root apart example.com --why "its owner asked"'),
        ("as many as there are again", 'swarm-root apart example.com --end --why "its owner allows it"'),
    ],
)
@click.argument("host")
@click.option("--end", is_flag=True, help="let them together again")
@_why
@_where
def apart(host: str, end: bool, why: str, **given: Any) -> None:
    """Have no two workers of one network (/24, /48) hold tasks of HOST at once."""
    answer = _ask(given, "POST", "/v1/admin/apart", {"host": host, "apart": not end, "why": why})
    said = "are kept apart" if answer["apart"] else "may work together"
    click.echo(f"workers of one network {said} on {answer['host']}")


@click.command(cls=Command, examples=[("who is kept off what, and how versions fare", "swarm-root policy")])
@_where
def policy(**given: Any) -> None:
    """Show quarantines, profiles, and how tasks came out by version."""
    found = _ask(given, "GET", "/v1/admin/policy")
    page = found
    while page.get("next") is not None:
        page = _ask(given, "GET", "/v1/admin/policy", query=f"?cursor={page['next']}")
        for name in ("quarantines", "profiles", "versions"):
            found[name] += page[name]
    for one in found["quarantines"]:
        by = one.get("who") or "the count"
        click.echo(f"quarantine\t{one['worker']}\t{one['host']}\t{one['left_s']:.0f} s\t{by}\t{one['why']}")
    for one in found["profiles"]:
        click.echo(f"profile\t{one['name']}\t{one['worker']}\t{one['state']}\t{one['challenges']} challenges")
    for one in found["versions"]:
        of = one["done"] + one["failed"]
        ran = f"{one['kind']} {one['version']}\tworker {one['worker']}"
        click.echo(f"version\t{ran}\t{one['success_rate']:.1%} of {of}")
    counted, second = found["quarantines_counted"], found["quarantines_second_order"]
    click.echo(
        f"quarantines after blocks so far\t{counted}, {second} of them of workers that had taken over another's tasks"
    )


@click.command(
    cls=Command,
    name="approve-version",
    examples=[
        ("only workers of this version get tasks", 'swarm-root approve-version worker 0.1.0 --why "0.2.0 leaks"'),
        ("only this version of an executor", 'swarm-root approve-version scrape 2 --why "the audited one"'),
        (
            "take it off; with none left every version may",
            'swarm-root approve-version scrape 2 --withdraw --why "fixed"',
        ),
    ],
)
@click.argument("name", metavar="worker|KIND")
@click.argument("version")
@click.option("--withdraw", is_flag=True, help="take the version off the pinned ones")
@_why
@_where
def approve_version(name: str, version: str, withdraw: bool, why: str, **given: Any) -> None:
    """Pin a version of the worker program or of a kind's executor: only workers with a pinned one get such tasks."""
    body = {"name": name, "version": version, "approved": not withdraw, "why": why}
    answer = _ask(given, "POST", "/v1/admin/approve-version", body)
    versions = answer.get("versions", [])
    for warning in answer.get("warnings", []):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{name}: only {', '.join(versions)}" if versions else f"{name}: every version")


@click.command(
    cls=Command,
    examples=[
        ("a task that can't end well: a dead letter at once", 'swarm-root fail TASK --why "the site asked us to stop"'),
        ("count an attempt as failed and try again later", 'swarm-root fail TASK --retry --why "hangs on that worker"'),
        ("give it a new life later", "swarm replay TASK"),
    ],
)
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@click.option("--retry", is_flag=True, help="let it wait for its next attempt, where it has one left")
@_why
@_where
def fail(tasks: tuple[str, ...], retry: bool, why: str, **given: Any) -> int:
    """Fail tasks by hand; whoever works on one is told at once."""
    answer = _ask(given, "POST", "/v1/admin/fail", {"tasks": tasks, "why": why, "retry": retry})
    faults = 0
    for one in answer["tasks"]:
        error = one.get("error")
        faults += error is not None
        click.echo(f"{one['task']}\t" + (f"{error['code']}: {error['message']}" if error else one["status"]))
    return 1 if faults else 0


@click.command(
    cls=Command,
    examples=[
        ("a requester", 'swarm-root revoke alice --why "left the team"'),
        ("a worker: its session ends, its tasks wait again", 'swarm-root revoke 0x71C… --why "sends broken results"'),
    ],
)
@click.argument("owner")
@_why
@_where
def revoke(owner: str, why: str, **given: Any) -> None:
    """Revoke all keys of OWNER, a requester's or operator's name or a worker's address, at once.

    A revoked worker ends with exit code 5 and isn't enrolled again (see admit); a name may get a new key (keys add).
    """
    answer = _ask(given, "POST", "/v1/admin/revoke", {"owner": owner, "why": why})
    click.echo("keys revoked: {keys}; sessions ended: {sessions}; tasks that wait again: {requeued}".format(**answer))


@click.command(cls=Command, examples=[("a worker that was repaired", 'swarm-root admit 0x71C… --why "new disk"')])
@click.argument("address")
@_why
@_where
def admit(address: str, why: str, **given: Any) -> None:
    """Let a revoked worker enrol again; it needs a join link as any newcomer."""
    _ask(given, "POST", "/v1/admin/admit", {"owner": address, "why": why})
    click.echo(f"{address} may enrol again")


@click.command(cls=Command, examples=[("the latest", "swarm-root acts"), ("more", "swarm-root acts --limit 200")])
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="how many at most")
@_where
def acts(limit: int, **given: Any) -> None:
    """List what operators did, the newest first: when, who, what, why."""
    items = _ask(given, "GET", "/v1/admin/acts", query=f"?limit={limit}")["items"]
    if not items:
        click.echo("no operator did anything by hand yet", err=True)
    for act in items:
        click.echo(f"{_clock(act['at'])}\t{act['who']}\t{act['act']}\t{act['subject']}\t{act['why']}")


@click.command(cls=Command, examples=[("what is wrong now", "swarm-root alerts")])
@_where
def alerts(**given: Any) -> None:
    """List the alerts that last: since when, what, about whom, and what to do. --alert-webhook posts them."""
    found = _ask(given, "GET", "/v1/alerts")["items"]
    for alert in found:
        click.echo(f"{_clock(alert['since'])}\t{alert['code']}\t{alert.get('subject', '')}\t{alert['message']}")
        click.echo(f"\t{alert['hint']}")
    if not found:
        click.echo("no alert lasts", err=True)


@click.group()
def queue() -> None:
    """Look at what waits, write it to a file, take a file in."""


@click.command(name="show", cls=Command, examples=[("what waits, and for which sites", "swarm-root queue show")])
@_where
def show_queue(**given: Any) -> None:
    """Show how many tasks wait, for how long, and for which hosts."""
    answer = _ask(given, "GET", "/v1/queue")
    for name in ("pending", "waiting", "active", "oldest_ready_s"):
        if answer.get(name) is not None:
            click.echo(f"{name}\t{answer[name]}")
    for host in answer.get("hosts", []):
        click.echo(f"{host['host']}\t{host['ready']}")


@click.command(name="export", cls=Command, examples=[("to a file", "swarm-root queue export > queue.jsonl")])
@_where
def export_queue(**given: Any) -> None:
    """Write the waiting tasks to standard output: JSON lines, each a task with its id, job and owner."""
    import httpx

    url, key = _door_of(given)
    out = sys.stdout.buffer
    try:
        with _client(url, key) as client, client.stream("GET", "/v1/queue/export") as answer:
            if not answer.is_success:
                answer.read()
                _data_of(answer, url)
            for chunk in answer.iter_bytes():
                out.write(chunk)
    except httpx.HTTPError as fault:
        raise _unreachable(url, fault) from fault


@click.command(
    name="import",
    cls=Command,
    examples=[
        ("what another root exported", "swarm-root queue import queue.jsonl"),
        ("from a queue in Redis", "… | swarm-root queue import -"),
    ],
)
@click.argument("file", type=click.File("rb"))
@_where
def import_queue(file: Any, **given: Any) -> int:
    """Submit the tasks of FILE, JSON lines. Owners and jobs stay; taking a file in twice makes nothing twice."""
    url, key = _door_of(given)
    created = duplicates = refused = before = 0
    for lines in _pieces(file):
        answer = _request("POST", url, "/v1/queue/import", key, content=b"".join(lines))
        created, duplicates = created + answer["created"], duplicates + answer["duplicates"]
        refused += answer["refused"]
        for fault in answer.get("faults", []):
            click.echo(f"line {before + fault['line']}: {fault['code']}: {fault['message']}", err=True)
        before += len(lines)
    click.echo(f"{created} tasks created, {duplicates} were there already, {refused} lines refused")
    return 1 if refused else 0


for _command in (show_queue, export_queue, import_queue):
    queue.add_command(_command)


def _pieces(file: Iterable[bytes]) -> Iterator[list[bytes]]:
    """A file's lines, as many together as one call may carry."""
    piece: list[bytes] = []
    size_bytes = 0
    for line in file:
        if piece and (len(piece) >= PIECE_LINES or size_bytes + len(line) > PIECE_BYTES):
            yield piece
            piece, size_bytes = [], 0
        piece.append(line)
        size_bytes += len(line)
    if piece:
        yield piece


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


COMMANDS: Final = (
    pause,
    resume,
    quarantine,
    unquarantine,
    apart,
    policy,
    approve_version,
    fail,
    revoke,
    admit,
    acts,
    alerts,
    queue,
)
