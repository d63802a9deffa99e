"""Logs are JSON unless on a terminal, and hold no secret."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from swarm.logs import STRANGERS_LINES, LineBudget, configure, is_secret_name, quieten_libraries


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    level = root.level
    opened = io.StringIO()
    configure(level="info", stream=opened)
    yield opened
    for handler in [one for one in root.handlers if one.get_name() == "swarm"]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_its_facts(stream: io.StringIO) -> None:
    structlog.get_logger().info("task_completed", task_id="0192", fence=4711)

    (line,) = lines(stream)
    assert line["event"] == "task_completed"
    assert (line["task_id"], line["fence"], line["level"]) == ("0192", 4711, "info")


def test_secrets_are_hidden_and_public_names_are_not(stream: io.StringIO) -> None:
    structlog.get_logger().info("enrolled", api_key="hunter2", invite="hunter2", key_id="12D3", peer_id="12D4")

    assert "hunter2" not in stream.getvalue()
    assert lines(stream)[0]["key_id"] == "12D3"
    assert lines(stream)[0]["peer_id"] == "12D4"


@pytest.mark.parametrize("name", ["api_key", "Authorization", "set-cookie", "peer_seed", "api_token", "eth_key"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


PROGRAM = """
import logging, sys
import structlog
from swarm.worker import Worker
{first}
try:
    Worker("root.example").run()
finally:
    structlog.get_logger().debug("dial_failed")
    structlog.get_logger().info("session_opened")
    logging.getLogger("a.library").warning("a library's")
"""


def run_program(first: str = "") -> subprocess.CompletedProcess[str]:
    """A program of others with a worker in it whose link is wrong."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, check=False
    )


def test_a_worker_in_a_program_of_others_logs_as_one_of_ours_and_its_fault_says_what_to_do() -> None:
    ended = run_program()
    assert ended.stdout == ""
    assert "dial_failed" not in ended.stderr
    logged = [json.loads(line)["event"] for line in ended.stderr.splitlines() if line.startswith("{")]
    assert logged == ["session_opened", "library_logged"]
    assert ended.stderr.endswith("a link looks like https://root.example/join#INVITE.KEYID\n")


def test_a_program_that_has_set_up_its_own_logging_keeps_it() -> None:
    handled = run_program("logging.basicConfig(format='theirs: %(message)s', stream=sys.stdout)")
    assert handled.stdout == "theirs: a library's\n"
    assert '"session_opened"' in handled.stderr
    assert "a library's" not in handled.stderr
    structured = run_program("structlog.configure(processors=[structlog.processors.KeyValueRenderer()])")
    assert "event='dial_failed'" in structured.stdout


OPENS_A_QUEUE = """
import logging, sys
import structlog
from swarm.errors import SwarmError
from swarm.queue import open_queue
from swarm.worker import Worker

def fails(call):
    try:
        call()
    except SwarmError:
        return
    raise AssertionError

fails(lambda: open_queue("http://127.0.0.1:9"))
structlog.get_logger().info("queue_opened")
structlog.get_logger().warning("root_trusted_on_first_use")
{then}
structlog.get_logger().info("session_opened")
logging.getLogger("httpx").info("theirs")
logging.getLogger("theirs").info("theirs")
"""


def run_queue(then: str) -> subprocess.CompletedProcess[str]:
    """A program of others that calls a queue first, and sets up its logging then."""
    return subprocess.run(
        [sys.executable, "-c", OPENS_A_QUEUE.format(then=then)], capture_output=True, text=True, check=True
    )


def test_a_queue_leaves_a_programs_logging_to_the_program() -> None:
    ended = run_queue("logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(name)s: %(message)s')")
    assert ended.stdout.splitlines() == ["httpx: theirs", "theirs: theirs"]
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == ["root_trusted_on_first_use"]


def test_who_sets_up_structlog_after_a_queue_was_opened_is_heeded() -> None:
    ended = run_queue("structlog.configure(processors=[structlog.processors.KeyValueRenderer()])")
    assert ended.stdout == "event='session_opened'\n"
    ended = run_queue('fails(Worker("root.example").run)')
    assert ended.stdout == ""
    logged = [json.loads(line)["event"] for line in ended.stderr.splitlines()]
    assert logged == ["root_trusted_on_first_use", "session_opened", "library_logged"]


def test_a_level_below_is_not_shown(stream: io.StringIO) -> None:
    structlog.get_logger().debug("turn_sent")

    assert stream.getvalue() == ""


def test_libraries_warnings_that_are_noise_are_dropped_and_their_errors_kept(stream: io.StringIO) -> None:
    logging.getLogger("libp2p").propagate = False  # as its import does
    quieten_libraries()

    logging.getLogger("libp2p.kad_dht.kad_dht").warning("Failed to read DHT message")
    logging.getLogger("libp2p.transport.tcp.tcp").error("dial failed")
    logging.getLogger("libp2p.host").error("broken")

    (line,) = lines(stream)
    assert (line["event"], line["said"], line["library"]) == ("library_logged", "broken", "libp2p.host")


def test_facts_that_json_has_no_form_for_are_logged_all_the_same(stream: io.StringIO) -> None:
    structlog.get_logger().info("deposited", amount_wei=10**30, directory=Path("/tmp"), ids=frozenset({1}))

    (line,) = lines(stream)
    assert line["amount_wei"] == 10**30
    assert "/tmp" in line["directory"]


def test_a_log_that_nobody_can_read_any_more_stops_nothing(stream: io.StringIO) -> None:
    stream.close()

    structlog.get_logger().info("task_completed")


def test_a_traceback_is_in_the_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("executor_broke")

    assert "ValueError: boom" in lines(stream)[0]["exception"]


def test_a_traceback_on_a_terminal_shows_no_variables() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    configure(stream=terminal)
    api_key = "hunter" + "2"
    try:
        raise ValueError(f"boom {len(api_key)}")
    except ValueError:
        structlog.get_logger().exception("executor_broke")
    finally:
        configure(stream=io.StringIO())
        logging.getLogger().handlers[:] = [h for h in logging.getLogger().handlers if h.get_name() != "swarm"]
        structlog.reset_defaults()

    assert "ValueError: boom 7" in terminal.getvalue()
    assert "hunter2" not in terminal.getvalue()


def test_what_strangers_make_a_library_say_is_held_back_beyond_a_budget(stream: io.StringIO) -> None:
    noisy, other = logging.getLogger("libp2p.kad_dht.utils"), logging.getLogger("alembic.runtime")
    for n in range(1000):
        noisy.error("nonsense %d", n)
    for _ in range(3 * STRANGERS_LINES):
        other.warning("ours")

    said = [line["library"] for line in lines(stream)]
    assert said.count("libp2p.kad_dht.utils") == STRANGERS_LINES
    assert said.count("alembic.runtime") == 3 * STRANGERS_LINES


def test_a_line_after_a_flood_says_how_many_were_held_back() -> None:
    now = 0.0
    budget = LineBudget(3, per_s=60.0, clock=lambda: now)

    assert [budget.take() for _ in range(5)] == [0, 0, 0, None, None]
    now = 59.0
    assert budget.take() is None
    now = 60.0
    assert [budget.take() for _ in range(4)] == [3, 0, 0, None]
