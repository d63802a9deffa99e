"""What docs/contract.md says the contract costs is what is measured."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "contract.md").read_text()
FIGURES: dict[str, dict[str, int]] = json.loads((ROOT / "tests" / "contracts" / "gas.json").read_text())

TASKS, WORKERS = 10_000, 50


def gas_rows() -> list[str]:
    return [
        f"| {name} | {figure['items']:,} | {figure['gas']:,} | {round(figure['gas'] / figure['items']):,} |"
        for name, figure in FIGURES.items()
    ]


def sum_rows() -> list[str]:
    def each(name: str) -> float:
        return FIGURES[name]["gas"] / FIGURES[name]["items"]

    def by_worker(*names: str) -> int:
        return round(sum(each(name) for name in names) * WORKERS / TASKS)

    pairs = [
        ("path A", round(each("createBatch") + each("completeBatch, 50 workers"))),
        ("path A, completed 500 at once", round(each("createBatch") + each("completeBatch, 500 tasks of 50 workers"))),
        ("path B, first epoch, redeemed", by_worker("fund, 50 new channels", "redeemBatch, 50 workers")),
        ("path B, first epoch, settled by the root", by_worker("fund, 50 new channels", "settleBatch, 50 workers")),
        ("path B, topped up, redeemed", by_worker("fund, 50 top-ups", "redeemBatch, 50 workers")),
        ("path B, topped up, settled by the root", by_worker("fund, 50 top-ups", "settleBatch, 50 workers")),
    ]
    return [f"| {name} | {gas:,} |" for name, gas in pairs]


def test_the_document_says_what_each_operation_costs() -> None:
    assert "\n".join(gas_rows()) in DOCUMENT


def test_the_document_says_what_a_task_costs_by_each_path() -> None:
    assert "\n".join(sum_rows()) in DOCUMENT
