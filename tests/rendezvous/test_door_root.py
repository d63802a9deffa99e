"""A root as its operator runs it: the process, its files, its commands, its errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import stat
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from rendezvous.directory import find_directory
from rendezvous.settings import Bind, RootSettings
from swarm.signing import parse_join_link, verify_settings
from tests.free_port import free_port
from tests.patience import PATIENCE_S
from tests.postgres import Postgres
from tests.tied import tied


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from rendezvous.cli import main; main()", *arguments]


@attrs.frozen
class Ran:
    code: int
    out: str
    err: str


async def run(home: Path, *arguments: str) -> Ran:
    process = await asyncio.create_subprocess_exec(
        *tied(command(*arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_CONFIG_HOME": str(home / "config")},
    )
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    return Ran(process.returncode or 0, out.decode(), err.decode())


@attrs.define
class Running:
    process: asyncio.subprocess.Process
    ready: dict[str, Any]
    log: Path

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def root(home: Path, *arguments: str) -> AsyncIterator[Running]:
    ready_file, log = home / "ready.json", home / "root.log"
    ready_file.unlink(missing_ok=True)
    with log.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            *tied(command("run", "--data", str(home / "data"), "--ready-file", str(ready_file), *arguments)),
            stdout=sink,
            stderr=sink,
            env={**os.environ, "XDG_CONFIG_HOME": str(home / "config")},
        )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not ready_file.exists():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.02)
        yield Running(process, json.loads(ready_file.read_text()), log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def settings_of(ready: dict[str, Any]) -> bytes:
    async with aiohttp.ClientSession() as http, http.get(f"{ready['door']}/settings") as answer:
        return await answer.read()


async def test_a_root_starts_says_where_it_is_and_stops_cleanly(tmp_path: Path) -> None:
    bind = f"127.0.0.1:{free_port()}"
    async with root(tmp_path, "--bind", bind, "--p2p", "off") as running:
        link = parse_join_link(running.ready["join_link"])
        assert (link.url, running.ready["peer_id"]) == (f"http://{bind}", None)
        settings, _ = verify_settings(await settings_of(running.ready), key_id=link.key_id)
        assert (settings.peer, settings.swarm.admission) == (None, "open")

        key_file = tmp_path / "data" / "operator.key"
        assert running.ready["operator_key_file"] == str(key_file)
        profile = tmp_path / "config" / "swarm" / "profile.json"
        assert json.loads(profile.read_text()) == {"url": f"http://{bind}", "key": key_file.read_text().strip()}
        for private in (key_file, profile, tmp_path / "data" / "swarm.key", tmp_path / "ready.json"):
            assert stat.S_IMODE(private.stat().st_mode) == 0o600, private
        assert await running.stop() == 0
    said = running.log.read_text()
    assert "Traceback" not in said
    assert '"root_stopped"' in said


async def test_a_root_that_is_told_to_stop_twice_ends_though_its_database_doesnt_answer(
    tmp_path: Path, postgres: Postgres, postgres_database: str
) -> None:
    options = ("--bind", f"127.0.0.1:{free_port()}", "--p2p", "off", "--ledger", postgres_database)
    async with root(tmp_path, *options) as running:
        with postgres.frozen(postgres_database):
            async with asyncio.timeout(PATIENCE_S):
                while running.process.returncode is None:
                    running.process.terminate()
                    await asyncio.sleep(0.1)
        assert running.process.returncode == 128 + signal.SIGTERM
    assert "stopping; tell it again to end it at once" in running.log.read_text()


async def test_a_root_that_is_told_to_stop_hangs_up_where_its_database_doesnt_answer(
    tmp_path: Path, postgres: Postgres, postgres_database: str
) -> None:
    options = ("--bind", f"127.0.0.1:{free_port()}", "--p2p", "off", "--ledger", postgres_database)
    async with root(tmp_path, *options) as running:
        with postgres.frozen(postgres_database):
            async with asyncio.timeout(PATIENCE_S):
                while '"ledger_unavailable"' not in running.log.read_text():  # noqa: ASYNC110 -- another process says so, whose writer waits by then
                    await asyncio.sleep(0.1)
            assert await running.stop() == 0
    said = running.log.read_text()
    assert '"ledger_hung_up"' in said
    assert '"root_stopped"' in said
    assert "Traceback" not in said


async def test_a_root_with_a_peer_tells_its_addresses_and_keeps_its_port(tmp_path: Path) -> None:
    bind = f"127.0.0.1:{free_port()}"
    seen = []
    for _ in range(2):
        async with root(tmp_path, "--bind", bind, "--mdns", "off") as running:
            settings, key = verify_settings(await settings_of(running.ready), key_id=None)
            assert settings.peer is not None
            assert running.ready["peer_id"] == settings.peer.id == key
            assert settings.peer.ipfs == f"/ip4/127.0.0.1/tcp/{bind.rpartition(':')[2]}/http"
            assert settings.peer.topic == f"/swarm/{settings.swarm.network_id}/tasks/1"
            seen.append(settings.peer.addrs)
            started = time.monotonic()
            assert await running.stop(signal.SIGINT) == 0
            assert time.monotonic() - started < 10
    assert seen[0] == seen[1]
    assert seen[0][0].startswith("/ip4/127.0.0.1/tcp/")
    assert "Traceback" not in running.log.read_text()


async def test_a_root_at_port_0_says_the_real_ports_everywhere(tmp_path: Path) -> None:
    options = ("--bind", "127.0.0.1:0", "--p2p-listen", "/ip4/127.0.0.1/tcp/0", "--mdns", "off")
    async with root(tmp_path, *options) as running:
        settings, _ = verify_settings(await settings_of(running.ready), key_id=None)
        door = running.ready["door"]
        assert parse_join_link(running.ready["join_link"]).url == door
        assert settings.swarm.doors == (door,)
        assert settings.peer is not None
        assert settings.peer.ipfs == f"/ip4/127.0.0.1/tcp/{door.rpartition(':')[2]}/http"
        invited = await run(tmp_path, "invite", "--data", str(tmp_path / "data"))
        profile = json.loads((tmp_path / "config" / "swarm" / "profile.json").read_text())
        named = (door, *settings.peer.addrs, invited.out.partition("#")[0], profile["url"])
    assert profile["url"] == door
    assert invited.out.startswith(f"{door}/join#")
    assert len(named) == 4
    for place in named:
        assert not re.search(r"(:|/tcp/)0\b", place), place


async def test_a_second_root_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with root(tmp_path, "--bind", f"127.0.0.1:{free_port()}", "--p2p", "off"):
        second = await run(tmp_path, "run", "--data", str(tmp_path / "data"), "--p2p", "off")
    assert second.code == 6
    assert second.err.startswith("error: ")
    assert "Traceback" not in second.err


async def test_a_port_in_use_is_told_with_what_to_do(tmp_path: Path) -> None:
    port = free_port()
    async with root(tmp_path, "--bind", f"127.0.0.1:{port}", "--p2p", "off"):
        other = await run(tmp_path, "run", "--data", str(tmp_path / "other"), "--bind", f"127.0.0.1:{port}")
    assert other.code == 2
    assert not (tmp_path / "other").exists(), "nothing was begun"
    assert f"127.0.0.1:{port}" in other.err
    assert "--bind" in other.err
    assert "Traceback" not in other.err


async def test_a_peer_that_cannot_listen_is_told_with_what_to_do(tmp_path: Path) -> None:
    ran = await run(tmp_path, "run", "--data", str(tmp_path / "data"), "--bind", f"127.0.0.1:{free_port()}",
                    "--p2p-listen", "/ip4/192.0.2.1/tcp/4001")  # fmt: skip
    assert ran.code == 2
    assert "192.0.2.1" in ran.err
    assert "Traceback" not in ran.err


def certificate(directory: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


async def test_a_door_with_a_certificate_speaks_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    bind = f"127.0.0.1:{free_port()}"
    async with root(
        tmp_path, "--bind", bind, "--p2p", "off", "--tls-cert", str(cert), "--tls-key", str(key)
    ) as running:
        assert running.ready["door"] == f"https://{bind}"
        trusted = ssl.create_default_context(cafile=cert)
        async with aiohttp.ClientSession() as http, http.get(f"https://{bind}/healthz", ssl=trusted) as answer:
            assert answer.status == 200


async def test_a_door_open_to_others_without_tls_warns_and_admits_by_invite(tmp_path: Path) -> None:
    ran = await run(tmp_path, "run", "--data", str(tmp_path / "data"), "--bind", "192.0.2.1:8765", "--p2p", "off")
    assert "door_without_tls" in ran.err
    assert "--bind" in ran.err  # this machine doesn't have that address
    assert RootSettings(bind=Bind(host="192.0.2.1", port=8765)).effective_admission == "invite"
    assert RootSettings(bind=Bind(host="::1", port=8765)).effective_admission == "open"


@pytest.mark.parametrize(
    ("host", "public_url", "nowhere"),
    [
        ("0.0.0.0", None, True),  # noqa: S104 -- nothing is bound
        ("::", "http://localhost:8765", True),
        ("0.0.0.0", "https://root.example", False),  # noqa: S104
        ("192.0.2.1", None, False),
        ("127.0.0.1", None, False),
    ],
)
def test_a_link_that_names_this_machine_to_others_is_known(host: str, public_url: str | None, nowhere: bool) -> None:
    assert RootSettings(bind=Bind(host=host, port=8765), public_url=public_url).link_is_for_here_alone is nowhere


async def test_a_profile_that_is_there_is_never_changed(tmp_path: Path) -> None:
    profile = tmp_path / "config" / "swarm" / "profile.json"
    profile.parent.mkdir(parents=True)
    profile.write_text("mine")
    async with root(tmp_path, "--bind", f"127.0.0.1:{free_port()}", "--p2p", "off"):
        assert profile.read_text() == "mine"


async def test_invites_and_keys_are_given_and_revoked_while_the_root_runs(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with (
        root(tmp_path, "--bind", f"127.0.0.1:{free_port()}", "--p2p", "off", "--admission", "invite") as running,
        aiohttp.ClientSession() as http,
    ):
        given = await run(tmp_path, "invite", "--data", data)
        link = parse_join_link(given.out.strip())
        assert link.url == running.ready["door"]
        assert link.invite is not None
        assert given.err == (
            "warning: this link works on this machine alone: give --url, or run the root with --public-url, "
            "and --bind if it listens to nobody else\n"
        )
        elsewhere = await run(tmp_path, "invite", "--url", "https://root.example", "--data", data)
        assert (elsewhere.out.startswith("https://root.example/join#"), elsewhere.err) == (True, "")
        assert parse_join_link(running.ready["join_link"]).invite not in {None, link.invite}

        first = await run(tmp_path, "keys", "add", "requester", "carol", "--data", data)
        assert first.err == "this is the key of requester carol; it isn't shown again\n"
        second = await run(tmp_path, "keys", "add", "requester", "carol", "--allowance", "1eth", "--data", data)
        assert second.err.splitlines()[1:] == ["the earlier key of requester carol stops working"]
        key = second.out.strip()
        tasks = f"{running.ready['door']}/v1/tasks"
        async with http.get(tasks, headers={"Authorization": f"Bearer {key}"}) as answer:
            assert answer.status == 200
        assert "requester\tcarol\tgood" in (await run(tmp_path, "keys", "list", "--data", data)).out
        assert (await run(tmp_path, "keys", "revoke", "carol", "--data", data)).code == 0
        async with asyncio.timeout(PATIENCE_S):  # the door believes a key for up to 5 s
            while True:
                async with http.get(tasks, headers={"Authorization": f"Bearer {key}"}) as answer:
                    if answer.status == 401:
                        assert (await answer.json())["error"]["code"] == "key_revoked"
                        break
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("run", "--bnd", "x"), 2, "--bind"),
        (("run", "--bind", "nowhere"), 2, "127.0.0.1:8765"),
        (("run", "--tls-cert", "x.pem"), 2, "--tls-key"),
        (("run", "--allow", "0x" + "0" * 40), 2, "--admission allowlist"),
        (("run", "--admission", "closed"), 2, "invite"),
        (("keys", "list"), 2, "swarm-root init"),
        (("invite", "--uses", "0"), 2, "--help"),
        (("gc", "--min-age", "soon"), 2, "a duration"),
    ],
)
async def test_a_mistake_is_told_in_two_lines(tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = await run(tmp_path, *arguments, "--data", str(tmp_path / "data"))
    assert ran.code == code
    assert ran.err.startswith("error: ")
    assert says in ran.err
    assert "Traceback" not in ran.err


async def test_an_unknown_variable_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_ROOT_BNID", "127.0.0.1:1")
    ran = await run(tmp_path, "init", "--data", str(tmp_path / "data"))
    assert ran.code == 2
    assert "SWARM_ROOT_BIND" in ran.err


async def test_a_swarm_keeps_its_key_and_a_lost_one_is_no_new_swarm(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert (await run(tmp_path, "init", "--data", str(data), "--name", "ours")).code == 0
    first = find_directory(data)
    assert (await run(tmp_path, "init", "--data", str(data))).code == 0
    assert find_directory(data) == first
    assert first.swarm.name == "ours"

    (data / "swarm.key").unlink()
    lost = await run(tmp_path, "init", "--data", str(data))
    assert lost.code == 2
    assert "swarm.key" in lost.err


async def test_help_is_quick(tmp_path: Path) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (await run(tmp_path, "run", "--help")).code == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 0.3
