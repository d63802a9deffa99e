"""``swarm-root``: make a root, run it, invite workers, give and revoke keys, collect what nobody names.

Slow modules are imported by the command that needs them, so that ``--help`` is quick. What goes wrong is one line of
what and one of what to do; the traceback is in the debug log.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from rendezvous import operate
from rendezvous.channel_commands import channel
from rendezvous.command import apply, duration_of, find, open_ledger_engine, options, settings_of
from rendezvous.contract_commands import contract
from rendezvous.help import OPTION_SECTIONS, Command, Sections
from rendezvous.ledger_commands import migrate
from rendezvous.money_commands import deposit, wallet, withdraw
from rendezvous.settings import RootSettings
from swarm.content.urls import is_this_machine
from swarm.errors import ConfigurationError, DirectoryLocked, SwarmError, UnreachableError
from swarm.settings import nearest

__all__ = ["cli", "main"]

EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_LOCKED: Final = 6
EXIT_FAULT: Final = 1


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line and say what went wrong.

    Returns:
        The exit code: 0 done, 2 usage or configuration, 3 the ledger can't be reached, 6 directory locked.
    """
    try:
        code = cli.main(args=arguments, prog_name="swarm-root", standalone_mode=False)
    except click.Abort:
        return 130
    except click.exceptions.NoArgsIsHelpError as fault:
        click.echo(fault.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as fault:
        context = getattr(fault, "ctx", None)
        message = fault.format_message()
        if isinstance(fault, click.NoSuchOption) and context is not None:
            message = _no_option(context, fault.option_name)
        _complain(message, f"{context.command_path if context else 'swarm-root'} --help lists what there is")
        return EXIT_USAGE
    except SwarmError as fault:
        _complain(str(fault), fault.hint)
        if isinstance(fault, DirectoryLocked):
            return EXIT_LOCKED
        if isinstance(fault, UnreachableError):
            return EXIT_UNREACHABLE
        return EXIT_USAGE if isinstance(fault, ConfigurationError) else EXIT_FAULT
    return code if isinstance(code, int) else 0


def _no_option(context: click.Context, wanted: str) -> str:
    """Name the nearest option that the failing command has, or the command before it that has the very one."""
    said = f"{context.command_path} has no option {wanted}"
    before = context.parent
    while before is not None:
        if wanted in _options_of(before):
            words = context.command_path.removeprefix(f"{before.command_path} ")
            return f"{said}: it goes before {words}, as in {before.command_path} {wanted} … {words}"
        before = before.parent
    close = nearest(wanted, _options_of(context))
    return said + (f"; did you mean {close}?" if close else "")


def _options_of(context: click.Context) -> list[str]:
    """The long options of a command that its help shows."""
    shown = [one for one in context.command.get_params(context) if isinstance(one, click.Option) and not one.hidden]
    return [text for one in shown for text in one.opts if text.startswith("--")]


def _complain(what: str, hint: str | None) -> None:
    click.echo(f"error: {what}", err=True)
    for line in (hint or "").splitlines():
        click.echo(f"       {line}", err=True)


#: How long a thread may keep the others waiting, seconds. The ledger's writer gives the interpreter up at each of some
#: sixteen statements a group, and by Python's own 5 ms it waits for the busy door at each of them (measured on a loaded
#: machine, three pairs: 1.1 to 2.7 times the single tasks a second).
SWITCH_S: Final = 0.0005
#: Told to stop again within this is told once: a terminal, and what started us in it, may both pass a Ctrl-C on.
AGAIN_S: Final = 1.0


@click.group(
    cls=Sections,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: swarm-root run. Each command's --help has examples.",
)
@click.version_option(package_name="task-swarm", message="%(version)s")
def cli() -> None:
    """Run the root of a task swarm: the door and the ledger."""


@cli.command(
    cls=Command,
    examples=[
        ("a swarm in the directory that run uses, too", "swarm-root init --name pages"),
        (
            "a second root of the swarm whose swarm.key and swarm.json are in ./first",
            "swarm-root init --data /srv/two --swarm-of ./first",
        ),
    ],
)
@click.option(
    "--swarm-of",
    type=click.Path(path_type=Path),
    help="make a further root of the swarm whose data directory (or a copy of its swarm.key and swarm.json) this is",
)
@options("data", "name")
def init(swarm_of: Path | None, **given: Any) -> None:
    """Make a data directory with a new swarm's key. `run` does it too.

    With --swarm-of it gets another root's key: both roots share one ledger on PostgreSQL, and one Kubo.
    """
    from rendezvous.directory import adopt_swarm, open_directory

    settings = settings_of(given)
    if swarm_of is not None:
        adopt_swarm(settings.data, swarm_of)
    with open_directory(settings.data, name=settings.name) as directory:
        from swarm.signing import peer_id_from_seed

        click.echo(f"{directory.path} holds the swarm {directory.swarm.name}, key {peer_id_from_seed(directory.seed)}")
        click.echo("keep a copy of swarm.key: who loses it loses the swarm")


@cli.command(
    name="run",
    cls=Command,
    option_sections=OPTION_SECTIONS,
    examples=[
        ("a swarm on this machine, for everybody on it", "swarm-root run"),
        (
            "for workers elsewhere, who need an invite: swarm-root invite",
            "swarm-root run --bind 0.0.0.0:8765 --public-url https://root.example --contact mailto:me@example.org",
        ),
        (
            "one that programs feed by LPUSH pages https://example.com/",
            "swarm-root run --intake 'redis://127.0.0.1:6379/0?queue=pages'",
        ),
        (
            "… by scrapy-redis' start URLs, each push a new visit, for alice",
            "swarm-root run --intake 'redis://127.0.0.1:6379/0?queue=news:start_urls&owner=alice&dedupe=off'",
        ),
        ("one whose pace of hosts other crawlers keep too", "swarm-root run --pacing redis://127.0.0.1:6379/0"),
        ("one that pays, once swarm-root contract deploy is done", "swarm-root run --rpc http://127.0.0.1:8545"),
    ],
)
@options()
def run_root(**given: Any) -> None:
    """Run the root until it is told to stop (SIGINT or SIGTERM); told again, it ends at once."""
    from swarm.logs import configure

    settings = settings_of(given)
    configure(level=settings.log_level)
    sys.setswitchinterval(SWITCH_S)
    asyncio.run(_run(settings))


async def _run(settings: RootSettings) -> None:
    from rendezvous.root import Ready, serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def leave() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, _leave_again(time.monotonic() + AGAIN_S))
        click.echo("stopping; tell it again to end it at once", err=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)

    def ready(where: Ready) -> None:
        profile = _write_profile(where, os.environ)
        click.echo(f"the door is at {where.door}; the operator's key is in {where.operator_key_file}")
        click.echo(f"workers join with: swarm-worker '{where.join_link}'")
        if settings.link_is_for_here_alone:
            _warn_of_link("give --public-url, the door's address as workers elsewhere reach it")
        if profile is not None:
            click.echo(f"swarm submit on this machine uses it: {profile} was written")
        sys.stdout.flush()
        if settings.ready_file is not None:
            _write_ready(settings.ready_file, where)
        # What was imported stays: searched for garbage, it stops all threads for 135 ms, with turns waiting.
        gc.collect()
        gc.freeze()

    await serve(settings, ready=ready, stop=stop)


def _warn_of_link(todo: str) -> None:
    click.echo(f"warning: this link works on this machine alone: {todo}", err=True)


def _leave_again(earliest: float) -> Callable[[int, Any], None]:
    """End the process, whatever it waits for: the ledger has all that was answered."""

    def end(number: int, _frame: Any) -> None:
        if time.monotonic() >= earliest:
            os._exit(128 + number)

    return end


def _write_ready(path: Path, where: Any) -> None:
    import msgspec

    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_bytes(msgspec.json.encode(where) + b"\n")
    os.chmod(unfinished, 0o600)  # the join link admits
    os.replace(unfinished, path)


def _write_profile(where: Any, environment: Mapping[str, str]) -> Path | None:
    """Log the local user in where nobody has: a profile that is there is never changed."""
    import msgspec

    named = environment.get("SWARM_PROFILE")
    base = Path(environment.get("XDG_CONFIG_HOME") or "~/.config")
    path = (Path(named) if named else base / "swarm" / "profile.json").expanduser()
    body = msgspec.json.encode({"url": where.door, "key": Path(where.operator_key_file).read_text().strip()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:  # there is one, or no home to write to: the root runs without
        return None
    with open(descriptor, "wb") as file:
        file.write(msgspec.json.format(body) + b"\n")
    return path


@cli.command(
    cls=Command,
    examples=[
        ("one worker, within a week", "swarm-root invite"),
        ("fifty workers, today", "swarm-root invite --uses 50 --expires-in 1d"),
    ],
)
@options("data", "ledger")
@click.option("--uses", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="how many may join by it")
@click.option("--expires-in", default="7d", show_default=True, help="how long it is good for")
@click.option("--url", help="the door's URL; by default where the root ran last")
def invite(uses: int, expires_in: str, url: str | None, **given: Any) -> None:
    """Print a join link that admits workers. The root may be running."""
    from rendezvous.wiring import new_invite
    from swarm.signing import JoinLink, format_join_link, peer_id_from_seed

    settings = settings_of(given)
    directory = find(settings)
    door = url or directory.swarm.url
    if door is None:
        raise ConfigurationError("the root never ran, so where its door is isn't known", hint="give --url")
    secret, op = new_invite(uses=uses, expires_in_s=duration_of(expires_in, "--expires-in"))
    apply(settings, op)
    link = JoinLink(url=door.rstrip("/"), invite=secret, key_id=peer_id_from_seed(directory.seed))
    click.echo(format_join_link(link))
    if url is None and is_this_machine(urlsplit(door).hostname or ""):
        _warn_of_link("give --url, or run the root with --public-url, and --bind if it listens to nobody else")


@cli.group()
def keys() -> None:
    """Give, list and revoke API keys of requesters and operators. The root may be running."""


@keys.command(
    name="add",
    cls=Command,
    examples=[
        ("a key for alice, shown once", "swarm-root keys add requester alice"),
        ("… who may pay workers", "swarm-root keys add requester alice --allowance 0.5eth"),
        ("a second operator", "swarm-root keys add operator bob"),
    ],
)
@click.argument("role", type=click.Choice(["requester", "operator"]))
@click.argument("name")
@click.option("--allowance", metavar="AMOUNT", help="what the requester may spend on rewards in all, such as 0.5eth")
@options("data", "ledger")
def add_key(role: str, name: str, allowance: str | None, **given: Any) -> None:
    """Print a new key; one that NAME had in this role stops working. An allowance belongs to NAME and stays."""
    from rendezvous.door.auth import digest_of, new_key
    from rendezvous.ledger.act_ops import PutKey, SetAllowance
    from rendezvous.ledger.ops import Op
    from swarm.amounts import parse_wei
    from swarm.model import Role

    if not (name.isprintable() and 0 < len(name) <= 64):
        raise ConfigurationError("a name has 1 to 64 printable characters")
    settings = settings_of(given)
    find(settings)
    key = new_key(Role(role))
    ops: list[Op] = []
    if allowance is not None:
        if role != Role.REQUESTER:
            raise ConfigurationError("an operator needs no allowance", hint="leave --allowance out")
        ops.append(SetAllowance(owner=name, amount_wei=parse_wei(allowance)))
    replaced = apply(settings, *ops, PutKey(digest=digest_of(key), role=Role(role), owner=name))
    click.echo(key)
    click.echo(f"this is the key of {role} {name}; it isn't shown again", err=True)
    if replaced:
        click.echo(f"the earlier key of {role} {name} stops working", err=True)


# -0.01eth is an amount, and no options -0 … -h
@keys.command(
    name="allowance",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    examples=[
        ("what alice may spend, has spent and has left", "swarm-root keys allowance alice"),
        ("so much more", "swarm-root keys allowance alice +0.5eth"),
    ],
)
@click.argument("name")
@click.argument("amount", required=False)
@options("data", "ledger")
def change_allowance(name: str, amount: str | None, **given: Any) -> None:
    """Show, set (0.5eth), raise (+0.5eth) or lower (-0.5eth) what the requester NAME may spend on rewards.

    What is spent or promised already stays so; a lower allowance only refuses what would come on top.
    """
    from rendezvous.ledger.act_ops import SetAllowance
    from swarm.amounts import parse_wei, show_wei

    settings = settings_of(given)
    find(settings)
    sign, digits = (amount[0], amount[1:]) if amount and amount[0] in "+-" else ("", amount)
    change_wei = parse_wei(digits) if digits else 0
    view = apply(
        settings,
        SetAllowance(
            owner=name, amount_wei=-change_wei if sign == "-" else change_wei, relative=bool(sign) or amount is None
        ),
    )
    shown = (show_wei(view.granted_wei), show_wei(view.spent_wei), show_wei(view.left_wei))
    click.echo("{}\tallowance {}\tspent or promised {}\tleft {}".format(name, *shown))


@keys.command(name="list", cls=Command, examples=[("whose keys are good", "swarm-root keys list")])
@options("data", "ledger")
def list_keys(**given: Any) -> None:
    """List whose keys there are; the keys themselves are stored as hashes only."""
    import sqlalchemy as sa

    from rendezvous.ledger.tables import api_keys

    settings = settings_of(given)
    find(settings)
    wanted = sa.select(api_keys.c.role, api_keys.c.owner, api_keys.c.revoked_at).order_by("role", "owner")
    with open_ledger_engine(settings) as engine, engine.connect() as connection:
        for role, owner, revoked_at in connection.execute(wanted):
            click.echo(f"{role}\t{owner}\t{'good' if revoked_at is None else 'revoked'}")


@keys.command(
    name="revoke", cls=Command, examples=[("alice has left", 'swarm-root keys revoke alice --why "left the team"')]
)
@click.argument("name")
@click.option("--why", default="by hand", show_default=True, help="what its owner is told, and the history keeps")
@options("data", "ledger")
def revoke_keys(name: str, why: str, **given: Any) -> None:
    """Revoke all keys of NAME (a requester, an operator, a worker's address), also where no root runs.

    A running root notices within seconds; swarm-root revoke asks it and works at once.
    """
    from rendezvous.ledger.act_ops import Revoke
    from rendezvous.wiring import OPERATOR

    settings = settings_of(given)
    find(settings)
    revoked = apply(settings, Revoke(owner=name, who=OPERATOR, why=why))
    if not revoked.keys and not revoked.workers:
        raise ConfigurationError(f"nobody called {name} has a key", hint="swarm-root keys list shows who has")
    click.echo(f"revoked {name}'s keys: {revoked.keys}; tasks of its workers that wait again: {revoked.requeued}")


@cli.command(
    "gc",
    cls=Command,
    examples=[
        ("make room on a full disk", "swarm-root gc"),
        ("also what was stored just now; no upload may be under way", "swarm-root gc --min-age 1m"),
    ],
)
@options("data", "ledger", "ipfs")
@click.option("--min-age", default="1h", show_default=True, help="leave alone what was stored within this time")
def collect_blocks(min_age: str, **given: Any) -> None:
    """Delete stored blocks that no result in the ledger names."""
    from rendezvous.collect import collect

    settings = settings_of(given)
    min_age_s = duration_of(min_age, "--min-age")
    deleted, freed_bytes = asyncio.run(collect(settings, find(settings), min_age_s=min_age_s))
    click.echo(f"deleted {deleted} blocks, {freed_bytes} bytes")


for command in (wallet, deposit, withdraw, contract, channel, migrate, *operate.COMMANDS):
    cli.add_command(command)
