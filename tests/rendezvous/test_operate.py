"""What an operator types beside a running root: each command is one call of its door."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from swarm.client import Client
from tests.fake_door import FakeDoor
from tests.free_port import free_port
from tests.rendezvous.test_door_root import certificate, root, run

NOBODY = "0" * 36


async def test_commands_ask_the_running_root_and_say_what_became_of_it(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with root(tmp_path, "--bind", f"127.0.0.1:{free_port()}", "--p2p", "off") as running:
        await run(tmp_path, "keys", "add", "requester", "carol", "--data", data)
        revoked = await run(tmp_path, "revoke", "carol", "--why", "left the team", "--data", data)
        assert (revoked.code, revoked.out) == (0, "keys revoked: 1; sessions ended: 0; tasks that wait again: 0\n")
        told = await run(tmp_path, "acts", "--data", data)
        assert told.out.strip().split("\t")[1:] == ["operator", "revoked", "carol", "left the team"]

        paused = await run(tmp_path, "pause", "--host", "Example.com", "--why", "its owner called", "--data", data)
        assert paused.out == "paused: host example.com; swarm-root resume --host example.com ends it\n"
        resumed = await run(tmp_path, "resume", "--host", "example.com", "--data", data)
        assert resumed.out == "resumed: host example.com\n"
        pinned = await run(tmp_path, "approve-version", "worker", "0.1.0", "--why", "x", "--data", data)
        assert pinned.out == "worker: only 0.1.0\n"
        assert pinned.err == ""
        mistyped = await run(tmp_path, "approve-version", "wrker", "0.1.0", "--why", "x", "--data", data)
        assert mistyped.err == "warning: no live worker runs wrker: what can be pinned now is worker\n"
        https = running.ready["door"].replace("http://", "https://")
        plain = await run(tmp_path, "acts", "--url", https, "--key-file", running.ready["operator_key_file"])
        assert (plain.code, plain.err.splitlines()) == (
            3,
            [f"error: {https}: it speaks plain HTTP, not HTTPS", f"       try {running.ready['door']}"],
        )
        nobody = await run(tmp_path, "quarantine", "0x0", "example.com", "--why", "x", "--data", data)
        assert (nobody.code, nobody.err.partition(":")[0]) == (1, "error")

        lines = tmp_path / "lines.jsonl"
        lines.write_text("http://one.example/\n{\nhttp://two.example/\n")
        taken = await run(tmp_path, "queue", "import", str(lines), "--data", data)
        assert (taken.code, taken.out) == (1, "2 tasks created, 0 were there already, 1 lines refused\n")
        assert taken.err.startswith("line 2: bad_request: ")
        shown = await run(tmp_path, "queue", "show", "--data", data)
        assert {"pending\t2", "one.example\t1", "two.example\t1"} <= set(shown.out.splitlines())
        exported = await run(tmp_path, "queue", "export", "--data", data)
        assert [json.loads(line)["urls"] for line in exported.out.splitlines()] == [
            ["http://one.example/"], ["http://two.example/"]
        ]  # fmt: skip

        quiet = await run(tmp_path, "alerts", "--data", data)
        assert (quiet.out, quiet.err) == ("", "no alert lasts\n")

        failed = await run(tmp_path, "fail", NOBODY, "--why", "a test", "--data", data)
        assert (failed.code, failed.out) == (1, f"{NOBODY}\tnot_found: there is no task {NOBODY}\n")
        admitted = await run(
            tmp_path,
            *("admit", "carol", "--why", "came back", "--url", running.ready["door"]),
            *("--key-file", running.ready["operator_key_file"]),
        )
        assert admitted.code == 0, admitted.err

        door = FakeDoor()
        with door.served() as elsewhere:
            refused = await run(tmp_path, "acts", "--url", elsewhere, "--data", data)
        assert (refused.code, door.requests) == (2, [])
        assert f"no key for {elsewhere} was given" in refused.err
        assert f"is for {running.ready['door']}; nothing was sent" in refused.err
        same = await run(tmp_path, "acts", "--url", f"{running.ready['door']}/", "--data", data)
        assert same.code == 0

    gone = await run(tmp_path, "acts", "--data", data)
    assert gone.code == 3
    assert "is the root running?" in gone.err


async def test_a_door_is_trusted_by_the_machines_certificates_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with root(tmp_path, "--bind", f"127.0.0.1:{free_port()}", "--p2p", "off", *tls) as running:
        data = str(tmp_path / "data")
        stranger = await run(tmp_path, "queue", "show", "--data", data)
        assert (stranger.code, "certificate" in stranger.err) == (3, True), stranger.err

        monkeypatch.setenv("SSL_CERT_FILE", str(cert))  # where OpenSSL is told of them
        shown = await run(tmp_path, "queue", "show", "--data", data)
        assert (shown.code, shown.err) == (0, "")
        exported = await run(tmp_path, "queue", "export", "--data", data)
        assert (exported.code, exported.err) == (0, "")
        key_file = running.ready["operator_key_file"]

        def look() -> str:
            with Client(running.ready["door"], Path(key_file).read_text().strip()) as client:
                return str(client.status()["mode"])

        assert await asyncio.to_thread(look) == "ask"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("revoke", "carol"), "--why"),
        (("fail", "--why", "x"), "TASK"),
        (("acts",), "swarm-root init"),
    ],
)
async def test_a_mistake_of_a_command_is_told_in_two_lines(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    ran = await run(tmp_path, *arguments, "--data", str(tmp_path / "data"))
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert says in ran.err
