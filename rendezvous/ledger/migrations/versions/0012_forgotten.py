"""Sessions by when they were used last: those that are over are forgotten."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_index("contexts_by_age", "contexts", ["kind", "used_at"])
