"""``swarm quote``: what a submission would cost, before it is one. Nothing is submitted, nothing reserved."""

from __future__ import annotations

import click

from swarm.cli.base import Command, as_json, connect
from swarm.cli.submit import read_urls


@click.command(
    cls=Command,
    short_help="Say what a submission would cost.",
    examples=[
        ("a reward for each page", "swarm quote urls.txt --reward 0.001eth"),
        ("submit only what fits", "swarm quote urls.txt --reward 20gwei && swarm submit urls.txt --reward 20gwei"),
    ],
)
@click.argument("sources", nargs=-1, required=True, metavar="FILE|URL|-...")
@click.option("--reward", required=True, metavar="AMOUNT", help="What each task pays: 0.001eth, 20gwei, 5000wei.")
@as_json
def quote(sources: tuple[str, ...], reward: str, as_json: bool) -> int:
    """Say what one task for each URL would cost: rewards, and the gas to fund and pay them now.

    Ends with 1 where your allowance has less left than the rewards come to. Nothing is submitted.
    """
    from swarm.amounts import parse_wei, show_wei
    from swarm.cli.output import print_json, print_pairs
    from swarm.cli.submit import check_paid
    from swarm.gas import path_a_gas

    reward_wei = parse_wei(reward)
    tasks = len(set(read_urls(sources)))
    with connect() as client:
        account = client.account()
    check_paid(account)
    total_wei, gas = tasks * reward_wei, path_a_gas(tasks) if reward_wei else 0
    base_fee_wei = None if account.base_fee_wei is None else int(account.base_fee_wei)
    gas_wei = None if base_fee_wei is None else gas * base_fee_wei
    left_wei = None
    if account.allowance_wei is not None:
        left_wei = max(0, int(account.allowance_wei) - int(account.spent_wei or 0))
    fits = left_wei is None or total_wei <= left_wei
    if as_json:
        amounts = {"reward_wei": reward_wei, "rewards_wei": total_wei, "base_fee_wei": base_fee_wei}
        amounts |= {"gas_wei": gas_wei, "allowance_left_wei": left_wei}
        shown = {name: None if wei is None else str(wei) for name, wei in amounts.items()}
        print_json({"tasks": tasks, **shown, "gas": gas, "fits": fits})
        return 0 if fits else 1
    pairs: list[tuple[str, object]] = [("tasks", tasks), ("rewards", f"{show_wei(total_wei)} ({tasks} x {reward})")]
    pairs.append(("gas", f"about {gas:,} to fund and pay them; the swarm's operator pays it"))
    if gas_wei is not None and base_fee_wei is not None:
        pairs.append(("gas now", f"about {show_wei(gas_wei)} at a base fee of {show_wei(base_fee_wei)}"))
    pairs.append(("allowance", None if left_wei is None else f"{show_wei(left_wei)} left"))
    print_pairs(pairs)
    if not fits:
        click.echo("the rewards are more than your allowance has left: the door would refuse them", err=True)
    return 0 if fits else 1
