"""Effect: one entry of the ledger. The ledger has no unique key: only the checker prevents a second entry."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of one message.

    Attributes:
        id: the message's id.
        position: its place in a partition, as text; empty where there are no partitions.
        process: the process that caused it: `<consumer>.<how often started>`.
        attempt: how often that process had begun the message, this time included.
        fence: the fence of its claim.
        at: the time on the system's monotonic clock, in seconds.
        wall: the time on the clock of the process.
    """

    id: str
    position: str
    process: str
    attempt: int
    fence: int
    at: float
    wall: float


def effects_table(name: str) -> sa.Table:
    """The ledger with a transactional checker: a business table in its database."""
    return sa.Table(
        f"{name}_effects",
        sa.MetaData(),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("position", sa.String(100), nullable=False),
        sa.Column("process", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("wall", sa.Double, nullable=False),
        mysql_engine="InnoDB",
    )
