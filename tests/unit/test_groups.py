"""What a group of faults comes down to."""

from __future__ import annotations

import trio

from swarm.groups import faults_in, the_one_fault


async def in_a_nursery(*faults: BaseException) -> BaseExceptionGroup[BaseException]:
    """The group that a nursery makes of tasks that fail so, and of one that is cancelled by it."""

    async def fail(fault: BaseException) -> None:
        raise fault

    try:
        async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
            outer.start_soon(trio.sleep_forever)
            for fault in faults:
                nursery.start_soon(fail, fault)
    except BaseExceptionGroup as group:
        return group
    raise AssertionError


async def test_one_fault_is_found_however_deep_and_beside_cancellations() -> None:
    fault = OSError("no route")
    group = await in_a_nursery(fault)
    assert the_one_fault(group) is fault
    assert the_one_fault(BaseExceptionGroup("around", [group])) is fault


async def test_of_several_none_is_the_one() -> None:
    group = await in_a_nursery(OSError("no route"), ValueError("no number"))
    assert the_one_fault(group) is None
    assert {type(fault) for fault in faults_in(group)} == {OSError, ValueError}


async def test_what_several_met_is_one() -> None:
    group = await in_a_nursery(OSError("no route"), OSError("no route"))
    assert isinstance(the_one_fault(group), OSError)
