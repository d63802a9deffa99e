"""Which connection wrote last, where several roots share the ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    made = op.create_table(
        "last_writer",
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("n"),
    )
    op.bulk_insert(made, [{"n": 1, "holder": 0}])
