"""Start a worker in this process: lock its directory, take signals, run, and leave one fault to name where it fails."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Final

import trio

from swarm.certificates import write_ca_bundle
from swarm.errors import ConfigurationError, MalformedInput
from swarm.executors.base import Executor
from swarm.groups import the_one_fault
from swarm.identity import Identity, open_identity
from swarm.signing import JoinLink, is_address, parse_join_link
from swarm.web.fetcher import user_agent
from swarm.worker.join import check_peer_options
from swarm.worker.run import run
from swarm.worker.settings import WorkerSettings

#: Requests to stop beyond the second mean the same.
MAX_STOPS: Final = 8
CA_BUNDLE_FILE: Final = "trusted.pem"


def start(
    settings: WorkerSettings,
    link: str,
    *,
    say: Callable[[str], None],
    executors: Mapping[str, Executor] | None = None,
) -> None:
    """Work in this process until SIGINT or SIGTERM has drained it.

    Raises:
        SwarmError: what ended it otherwise.
    """
    try:
        joined = parse_join_link(link)
    except MalformedInput as fault:
        raise ConfigurationError(str(fault), hint="a link looks like https://root.example/join#INVITE.KEYID") from fault
    _check(settings)
    with open_identity(settings.data.expanduser()) as identity:
        if settings.ca_file is not None:
            _trust_in_uploads(settings.ca_file, identity.directory / CA_BUNDLE_FILE)
        trio.run(_run, settings, joined, identity, say, executors)


def _check(settings: WorkerSettings) -> None:
    """Refuse now what would be refused once a door was told that this worker is there."""
    if settings.payout is not None and not is_address(settings.payout):
        raise ConfigurationError(
            f"--payout: {settings.payout} isn't an Ethereum address with its checksum",
            hint="copy it from your wallet, with upper and lower case as it is there",
        )
    if settings.rpc is not None and not re.match(r"https?://[^/?#]", settings.rpc):
        raise ConfigurationError("--rpc isn't the URL of a node", hint="it looks like http://127.0.0.1:8545")
    user_agent(settings.contact, role="worker")
    check_peer_options(settings)


def _trust_in_uploads(ca_file: Path, bundle: Path) -> None:
    """Uploads go by ipfshttpclient, whose requests take certificates from a file that the environment names."""
    try:
        write_ca_bundle(bundle, ca_file)
    except OSError as fault:
        raise ConfigurationError(f"--ca-file {ca_file}: {fault.strerror}", hint="it has to be a PEM file") from fault
    os.environ["REQUESTS_CA_BUNDLE"] = str(bundle)


async def _run(
    settings: WorkerSettings,
    link: JoinLink,
    identity: Identity,
    say: Callable[[str], None],
    executors: Mapping[str, Executor] | None,
) -> None:
    stop, stops = trio.open_memory_channel[None](MAX_STOPS)
    working = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, signals, stop, working, nursery.cancel_scope)
                await run(settings, link, identity, stops=stops, executors=executors, say=say, started=working.set)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            alone = the_one_fault(group)
            if alone is None:
                raise
            raise alone from group


async def _pass_on(
    signals: AsyncIterator[int],
    stop: trio.MemorySendChannel[None],
    working: trio.Event,
    starting: trio.CancelScope,
) -> None:
    async for _ in signals:
        if not working.is_set():
            starting.cancel()  # nothing is held yet
        try:
            stop.send_nowait(None)
        except trio.WouldBlock:
            continue
