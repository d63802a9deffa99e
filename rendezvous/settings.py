"""What an operator may set of a root; each setting is declared here and nowhere else."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import attrs

from rendezvous.policy.alarms import AlarmRules
from rendezvous.policy.budget import NEWCOMER_BUDGET
from rendezvous.policy.hours import Hours, parse_hours
from rendezvous.policy.order import TIER_SHARES
from swarm.content.urls import is_this_machine
from swarm.errors import ConfigurationError
from swarm.settings import bytes_size, choice, count, directory, duration_s, number, setting, switch, text

if TYPE_CHECKING:
    from rendezvous.directory import ContractFile

__all__ = ["Bind", "RootSettings"]

DEFAULT_DATA: Final = Path("~/.local/share/task-swarm/root").expanduser()
#: As ``swarm.wire.TierText``.
_TIER: Final = re.compile(r"[a-z][a-z0-9_-]{0,19}")
_ALARMS: Final = AlarmRules()

Admission = Literal["invite", "allowlist", "open"]
Finality = int | Literal["finalized"]
Mode = Literal["ask", "assign"]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@attrs.frozen(kw_only=True)
class Bind:
    """Where the door listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_this_machine(self.host)

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every interface."""
        return self.host in {"0.0.0.0", "::"}  # noqa: S104 -- compared, not bound

    def url(self, *, tls: bool) -> str:
        """The door's URL as far as it can be told from here."""
        host = "127.0.0.1" if self.is_wildcard else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if tls else 'http'}://{shown}:{self.port}"


def _bind(given: str) -> Bind:
    host, _, port = given.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("an address and a port, such as 127.0.0.1:8765 or [::]:443")
    return Bind(host=host, port=int(port))


def _tier(given: str) -> tuple[str, float]:
    name, _, share = given.strip().partition("=")
    parts = number(0.001, 1_000_000.0)(share)
    if not _TIER.fullmatch(name):
        raise ValueError("a tier and its share, such as interactive=70")
    return name, parts


def _url(given: str) -> str:
    parts = urlsplit(given.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("a URL such as https://root.example")
    return given.strip().rstrip("/")


def _url_with_query(given: str) -> str:
    parts = urlsplit(given.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a URL such as http://127.0.0.1:8545")
    return given.strip()


def _finality(given: str) -> Finality:
    if given.strip() == "finalized":
        return "finalized"
    if not (given.isascii() and given.isdigit() and int(given) <= 100_000):
        raise ValueError("a number of blocks, or finalized")
    return int(given)


def _network(given: str) -> Network:
    try:
        return ipaddress.ip_network(given.strip(), strict=False)
    except ValueError:
        raise ValueError("an address or a network such as 10.0.0.0/8") from None


def _name(given: str) -> str:
    name = text(given)
    if len(name) > 64 or not name.isprintable():
        raise ValueError("a name of up to 64 characters")
    return name


def _address(given: str) -> str:
    from swarm.signing import is_address

    if not is_address(given.strip()):
        raise ValueError("an Ethereum address with its EIP-55 checksum")
    return given.strip()


def _admission(given: str) -> Any:
    return choice("invite", "allowlist", "open")(given)


def _mode(given: str) -> Any:
    return choice("ask", "assign")(given)


_mode.choices = ("ask", "assign")  # type: ignore[attr-defined]
_admission.choices = ("invite", "allowlist", "open")  # type: ignore[attr-defined]


@attrs.frozen(kw_only=True)
class RootSettings:
    """A root."""

    data: Path = setting(
        "the root's data directory: keys, ledger, blocks; below XDG_DATA_HOME where that is set",
        default=DEFAULT_DATA,
        parse=directory,
        in_data_home=True,
    )
    bind: Bind = setting(
        "where the door listens; port 0 is a free one", default=Bind(host="127.0.0.1", port=8765), parse=_bind
    )
    public_url: str | None = setting("the URL that workers and requesters reach the door at", default=None, parse=_url)
    tls_cert: Path | None = setting("the door's certificate chain, PEM", default=None, parse=directory)
    tls_key: Path | None = setting("the certificate's key, PEM", default=None, parse=directory)
    trusted_proxy: tuple[Network, ...] = setting(
        "a proxy whose X-Forwarded-For is believed; may be given several times", parse=_network, many=True
    )
    name: str | None = setting("what the swarm is called", default=None, parse=_name)
    admission: Admission | None = setting(
        "who may enrol; by default invite, and open where the door listens on loopback only",
        default=None,
        parse=_admission,
    )
    allow: tuple[str, ...] = setting(
        "an address that may enrol with --admission allowlist; may be given several times", parse=_address, many=True
    )
    ledger: str | None = setting(
        "the ledger's database, such as postgresql://HOST/NAME; by default SQLite in the data directory",
        default=None,
        parse=text,
    )
    host_rate: float = setting(
        "requests a second that the swarm makes to one host; 0 is no limit",
        default=1.0,
        parse=number(0.0, 100_000.0),
        unit="1/s",
    )
    swarm_rate: float = setting(
        "requests a second that the whole swarm makes; 0 is no limit",
        default=0.0,
        parse=number(0.0, 1_000_000.0),
        unit="1/s",
    )
    region_hours: tuple[tuple[str, Hours], ...] = setting(
        "a region, its time zone and the hours at which its workers work, such as eu=Europe/Berlin,08:00-22:00; may "
        "be given several times; others work at any time",
        parse=parse_hours,
        many=True,
    )
    newcomer_budget: int = setting(
        "how many tasks a worker may hold before any of its work was accepted; 0 is no limit, ever",
        default=NEWCOMER_BUDGET,
        parse=count(0, 10_000),
    )
    tier: tuple[tuple[str, float], ...] = setting(
        "a tier of work and its share of the grants, such as interactive=70; may be given several times; by default "
        "interactive=70 and bulk=30",
        parse=_tier,
        many=True,
    )
    intake: tuple[str, ...] = setting(
        "a Redis queue that is drained into the ledger, such as redis://127.0.0.1:6379/0?queue=pages; may be given "
        "several times",
        parse=text,
        many=True,
        secret=True,
    )
    mode: Mode = setting(
        "ask: workers ask for tasks; assign: the root pushes them over the session to whoever has least to do",
        default="ask",
        parse=_mode,
    )
    pacing: str | None = setting(
        "a Redis with the buckets of hosts that other swarms and crawlers take from too, such as "
        "redis://127.0.0.1:6379/0; --host-rate gives their pace",
        default=None,
        parse=text,
        secret=True,
    )
    first_lease: float = setting(
        "the lease of a kind that has no samples yet", default=60.0, parse=duration_s, unit="s"
    )
    receipts: str = setting(
        "whose completions are signed, for a receipt: of tasks with a reward, or of all",
        default="paid",
        parse=choice("paid", "all"),
    )
    max_disk: int | None = setting(
        "the most that stored blocks may take, such as 500GB; by default there is no limit",
        default=None,
        parse=bytes_size,
    )
    ipfs: str | None = setting(
        "the multiaddr of a Kubo RPC that keeps the blocks; by default the data directory does",
        default=None,
        parse=text,
    )
    allow_private: bool = setting(
        "let the root read robots.txt on this machine and its networks", default=False, parse=switch
    )
    contact: str | None = setting(
        "a URL or e-mail address for owners of sites, sent in the User-Agent", default=None, parse=text
    )
    p2p: bool = setting("run a libp2p peer: gossip, discovery", default=True, parse=switch)
    p2p_listen: tuple[str, ...] = setting(
        "a multiaddr that the peer listens on; may be given several times", parse=text, many=True
    )
    dht: bool = setting("meet peers by the DHT", default=True, parse=switch)
    mdns: bool = setting("meet peers by mDNS", default=True, parse=switch)
    psk: Path | None = setting(
        "the swarm.key file of a closed network, as Kubo has it; workers need it too", default=None, parse=directory
    )
    rpc: str | None = setting(
        "the JSON-RPC of an Ethereum node: rewards are funded and paid; without it nobody is",
        default=None,
        parse=_url_with_query,
        secret=True,
    )
    contract: str | None = setting(
        "the address of the escrow contract; by default the one that was deployed from the data directory",
        default=None,
        parse=_address,
    )
    public_rpc: str | None = setting(
        "the JSON-RPC that workers are told to look at the chain by; by default --rpc where both it and the door are "
        "on this machine only",
        default=None,
        parse=_url_with_query,
    )
    chain_key: Path | None = setting(
        "the encrypted keystore of the key that pays; by default wallet.json in the data directory",
        default=None,
        parse=directory,
    )
    passphrase_file: Path | None = setting(
        "the file of its passphrase; without it the terminal is asked", default=None, parse=directory
    )
    finality: Finality = setting(
        "a transaction is final with so many blocks on top of its own, or, with the word `finalized`, once the chain "
        "calls its block that",
        default=12,
        parse=_finality,
        unit="blocks",
    )
    max_fee: float = setting(
        "the most that is offered for a unit of gas", default=100.0, parse=number(0.000_000_001, 1e6), unit="gwei"
    )
    alert_webhook: str | None = setting(
        "POST each alert that begins or ends to this URL, as JSON", default=None, parse=_url_with_query, secret=True
    )
    alert_secret_file: Path | None = setting(
        "the file of a secret that signs what is posted (X-Swarm-Signature)", default=None, parse=directory
    )
    alert_success: float = setting(
        "alert when less than this share of a worker's last attempts succeeded; 0 is never",
        default=_ALARMS.success,
        parse=number(0.0, 1.0),
    )
    alert_queue_age: float = setting(
        "alert when the oldest ready task has waited for so long; 0 is never",
        default=_ALARMS.queue_age_s,
        parse=duration_s,
        unit="s",
    )
    alert_expiries: int = setting(
        "alert when so many leases, or tasks, ran out within ten minutes; 0 is never",
        default=_ALARMS.expiries,
        parse=count(0, 1_000_000),
    )
    alert_blocks: int = setting(
        "alert when a site blocked so many requests within ten minutes; 0 is never",
        default=_ALARMS.blocks,
        parse=count(0, 1_000_000),
    )
    ready_file: Path | None = setting(
        "write where the door is to this file once it serves", default=None, parse=directory
    )
    log_level: str = setting(
        "the lowest level that is logged", default="info", parse=choice("debug", "info", "warning", "error")
    )

    @property
    def tier_shares(self) -> Mapping[str, float]:
        """The share of each tier."""
        return dict(self.tier) or TIER_SHARES

    @property
    def effective_admission(self) -> Admission:
        """Who may enrol."""
        return self.admission or ("open" if self.bind.is_loopback else "invite")

    @property
    def url(self) -> str:
        """The URL that join links name."""
        return self.public_url or self.bind.url(tls=self.tls_cert is not None)

    @property
    def link_is_for_here_alone(self) -> bool:
        """Whether join links name this machine's loopback, though the door listens to other machines."""
        return not self.bind.is_loopback and is_this_machine(urlsplit(self.url).hostname or "")

    def with_contract(self, deployed: ContractFile | None) -> RootSettings:
        """The settings with the contract that was deployed from the data directory, unless another was given."""
        return self if deployed is None or self.contract is not None else attrs.evolve(self, contract=deployed.contract)

    @property
    def told_rpc(self) -> str | None:
        """The JSON-RPC that workers are told; never one with a secret in it that the operator didn't choose to tell."""
        if self.public_rpc is not None or self.rpc is None or not self.bind.is_loopback:
            return self.public_rpc
        parts = urlsplit(self.rpc)
        local = Bind(host=parts.hostname or "", port=parts.port or 0).is_loopback
        plain = not (parts.username or parts.password or parts.path.strip("/") or parts.query)
        return self.rpc if local and plain else None

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            ConfigurationError: with what to do.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigurationError("--tls-cert and --tls-key go together", hint="give both, or neither")
        if self.allow and self.effective_admission != "allowlist":
            raise ConfigurationError(
                f"--allow has no effect with --admission {self.effective_admission}", hint="add --admission allowlist"
            )
        if self.contract is not None and self.rpc is None:
            raise ConfigurationError(
                "--rpc and --contract go together; --rpc isn't given", hint="give both for a swarm that pays, or none"
            )
        if self.public_rpc is not None and self.rpc is None:
            raise ConfigurationError(
                "--public-rpc has no effect without --rpc", hint="give both for a swarm that pays, or none"
            )
        if self.chain_key is not None and self.rpc is None:
            raise ConfigurationError(
                "--chain-key has no effect without --rpc and --contract", hint="give all three for a swarm that pays"
            )
        if self.alert_secret_file is not None and self.alert_webhook is None:
            raise ConfigurationError(
                "--alert-secret-file has no effect without --alert-webhook", hint="give both, or neither"
            )
        if self.first_lease <= 0:
            raise ConfigurationError("--first-lease must be above 0", hint="60 is the default")
