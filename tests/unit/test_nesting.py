"""Input nested so deeply that a parser runs out of stack is refused; it doesn't end the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: What a stranger may send: to the root, to a worker by gossip, to a requester as a result.
SHAPES = {
    "a submission": (
        "swarm.wire",
        "Submission",
        b'{"tasks":[{"kind":"noop","urls":["http://h.example/"],"meta":{"a":',
        b"}}]}",
    ),
    "gossip": ("swarm.wire", "Announcement", b'{"later":', b"}"),
    "an answer of the door": ("swarm.turn_wire", "TurnAnswer", b'{"frame":"turn","n":1,"later":', b"}"),
    "a manifest": ("swarm.content.manifest", "Manifest", b'{"meta":{"a":', b"}}"),
}
#: In a process of its own, since what is tested is that the process lives. eth_account brings py_ecc.
PROGRAM = """
import importlib, sys
import eth_account
from swarm.errors import MalformedInput
from swarm.wire import decode
module, shape, head, tail, depth = sys.argv[1:]
body = head.encode() + b"[" * int(depth) + b"]" * int(depth) + tail.encode()
try:
    decode(body, getattr(importlib.import_module(module), shape))
except MalformedInput as fault:
    print(fault)
"""


@pytest.mark.parametrize("shape", SHAPES)
def test_nesting_that_overruns_the_stack_is_refused(shape: str) -> None:
    module, name, head, tail = SHAPES[shape]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, name, head.decode(), tail.decode(), "200000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-500:]
    assert "recursion" in ran.stdout
