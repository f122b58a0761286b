"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade(op: Operations, table: str) -> None:
    """Change `table` and the tables that belong to it."""


def downgrade(op: Operations, table: str) -> None:
    """Undo the changes of `upgrade`."""
