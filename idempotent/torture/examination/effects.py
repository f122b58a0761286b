"""Effect: one entry of the ledger. Nothing in the ledger forbids a second one: only the checker stands in the way."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of one message.

    Attributes:
        id: the message's id.
        position: its place in a partition, as text; empty where there are no partitions.
        process: who did it: `<consumer>.<how often started>`.
        attempt: how often that process had begun the message, this time included.
        fence: of its claim.
        at: when, on the system's monotonic clock, in seconds.
        wall: when, on the clock as the process saw it.
    """

    id: str
    position: str
    process: str
    attempt: int
    fence: int
    at: float
    wall: float

    @property
    def slot(self) -> int:
        """Which consumer did it."""
        return int(self.process.partition(".")[0])


def effects_table(name: str) -> sa.Table:
    """The ledger of a transactional checker: a business table in its database."""
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
