"""``swarm receipt`` gets a task's receipt, ``swarm verify`` checks one, without the swarm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swarm.cli.base import Command, complain, connect, explained, named_task
from swarm.errors import DoorRefused, SwarmError

if TYPE_CHECKING:
    pass

#: The receipt isn't what it claims.
EXIT_INVALID = 1


@click.command(
    cls=Command,
    short_help="Get a task's receipt.",
    examples=[
        ("keep it", "swarm receipt TASK -o receipt.json"),
        ("check it at once", "swarm receipt TASK | swarm verify -"),
    ],
)
@click.argument("task")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write to this file. [default: stdout]")
def receipt(task: str, output: Path | None) -> None:
    """Get the receipt of a completed TASK: signed by its worker and by the root, whoever of them is gone later."""
    from swarm.cli.output import print_json

    with connect() as client:

        def look(fault: DoorRefused) -> SwarmError:
            client.task(task)  # it is there: the door's reason is what counts, not where tasks are listed
            return SwarmError(str(fault), hint=f"swarm show {task} shows how far it is")

        with named_task(client, task), explained(look):
            found = client.receipt(task)
    if output is None:
        print_json(found)
        return
    import msgspec

    output.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    click.echo(f"wrote {output}", err=True)


@click.command(
    cls=Command,
    short_help="Check a receipt, offline.",
    examples=[
        ("both signatures", "swarm verify receipt.json"),
        (
            "and that a certain key accepted it",
            "swarm verify receipt.json --signer 0x71C7656EC7ab88b098defB751B7401B5f6d8976F",
        ),
        ("and the result itself", "swarm verify receipt.json --manifest manifest.json"),
    ],
)
@click.argument("file", metavar="FILE|-")
@click.option("--signer", metavar="ADDRESS|PEER-ID", help="Who must have accepted it: the payer, or the swarm's key.")
@click.option("--manifest", type=click.Path(path_type=Path), help="The result that it must be a receipt of.")
def verify(file: str, signer: str | None, manifest: Path | None) -> int:
    """Check the signatures of a receipt; nobody is asked. Ends with 1, and the reason, where it isn't good.

    It says that this worker signed this result, and that this root accepted it for this reward. Who the root is you
    have to know: compare the signer, or name it with --signer. Whether it was paid is on the chain, under the task's id
    there.
    """
    from swarm.amounts import show_wei
    from swarm.cli.output import print_pairs
    from swarm.content.cid import verify_block
    from swarm.errors import ContentMismatch
    from swarm.receipts import read_receipt, receipt_fault
    from swarm.vouchers import chain_task_id

    found = read_receipt(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    fault = receipt_fault(found, signer=signer)
    completion, acceptance = found.completion, found.acceptance
    if fault is None and manifest is not None:
        try:
            verify_block(completion.result, manifest.read_bytes())
        except ContentMismatch as mismatch:
            fault = f"{manifest} isn't the result: {mismatch}"
    if fault is not None:
        complain(f"the receipt isn't good: {fault}")
        return EXIT_INVALID
    pairs: list[tuple[str, object]] = [("task", completion.task), ("result", completion.result)]
    pairs += [("done by", completion.worker), ("paid to", completion.payout), ("accepted by", acceptance.signer)]
    if acceptance.ethereum is not None:
        pairs.append(("reward", show_wei(int(acceptance.reward_wei))))
        chain = f"{acceptance.ethereum.contract} on chain {acceptance.ethereum.chain_id}"
        pairs += [
            ("contract", chain),
            ("task there", "0x" + chain_task_id(completion.task, completion.generation).hex()),
        ]
    print_pairs(pairs)
    click.echo("good: both signatures fit", err=True)
    return 0
