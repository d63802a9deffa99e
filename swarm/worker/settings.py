"""What a worker's owner may set; each setting is declared here and nowhere else. Most need none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from swarm.settings import bytes_size, choice, count, directory, duration_s, setting, switch, text

#: Variables of the root begin with this; they may stand in the same environment.
ROOT_PREFIX: Final = "SWARM_ROOT_"
DEFAULT_DATA: Final = Path("~/.local/share/task-swarm/worker")  # expanded when it is used
MAX_SLOTS: Final = 256


def _label(given: str) -> str:
    label = text(given)
    if len(label) > 64:
        raise ValueError("a label of at most 64 characters")
    return label


@attrs.frozen(kw_only=True)
class WorkerSettings:
    """The section of ``swarm-worker``."""

    slots: int = setting("how many tasks run at a time", default=8, parse=count(1, MAX_SLOTS), unit="tasks")
    data: Path = setting(
        "where keys, results and the journal are kept, below XDG_DATA_HOME where that is set; one worker a directory",
        default=DEFAULT_DATA,
        parse=directory,
        in_data_home=True,
    )
    payout: str | None = setting(
        "the Ethereum address that is paid; bound at enrolment", default=None, parse=text, unit="this worker's own"
    )
    allow_private: bool = setting("let tasks reach this machine and its private networks", default=False, parse=switch)
    serve_to: tuple[str, ...] = setting(
        "a peer id that may fetch results from here besides the swarm's own, or any", parse=text, many=True
    )
    p2p: bool = setting("take part in gossip and discovery; off: HTTPS to the door alone", default=True, parse=switch)
    dht: bool = setting("meet peers by the DHT", default=True, parse=switch)
    mdns: bool = setting("meet peers on the local network", default=True, parse=switch)
    listen: tuple[str, ...] = setting(
        "a multiaddr to listen on, such as /ip4/0.0.0.0/tcp/4001; by default a free port of every interface, "
        "or of the loopback where the door is there",
        parse=text,
        many=True,
    )
    psk: Path | None = setting("the swarm.key file of a closed network", default=None, parse=directory)
    labels: tuple[str, ...] = setting("a word that tasks may require", option="label", parse=_label, many=True)
    region: str | None = setting("where this worker is, a word that tasks may require", default=None, parse=_label)
    max_disk_bytes: int = setting(
        "how much results may take", option="max-disk", default=10 * 1000**3, parse=bytes_size, unit="bytes"
    )
    max_body_bytes: int = setting(
        "how much one page may take", option="max-body", default=16 * 1024**2, parse=bytes_size, unit="bytes"
    )
    fetch_timeout_s: float = setting(
        "how long one page may take", option="fetch-timeout", default=60.0, parse=duration_s, unit="seconds"
    )
    contact: str | None = setting(
        "how a site's owner reaches you, a URL or an e-mail address; sent in User-Agent", default=None, parse=text
    )
    rpc: str | None = setting(
        "the JSON-RPC of an Ethereum node that you trust; by default the one that the swarm's settings name",
        default=None,
        parse=text,
        secret=True,
    )
    max_unpaid: int = setting(
        "how many accepted tasks of jobs that pay by vouchers may be without one before no more are asked for",
        default=16,  # what a root locks for a newcomer covers so many: its claim budget (DESIGN §8)
        parse=count(1, 100_000),
        unit="tasks",
    )
    ca_file: Path | None = setting("certificates to trust the door by, a PEM file", default=None, parse=directory)
    grace_s: float = setting(
        "how long running tasks may go on after the first Ctrl-C",
        option="grace",
        default=8.0,
        parse=duration_s,
        unit="seconds",
    )
    want: bool = setting("take tasks that weren't heard of by gossip", default=True, parse=switch, hidden=True)
    log_level: str = setting(
        "the lowest level that is logged", default="info", parse=choice("debug", "info", "warning", "error")
    )
