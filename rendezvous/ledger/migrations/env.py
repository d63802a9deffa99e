"""Alembic's entry: run the migrations on the connection that ``migrate`` hands over."""

from alembic import context

from rendezvous.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
