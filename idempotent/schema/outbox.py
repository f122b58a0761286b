"""The tables of an outbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, SmallInteger, Table
from sqlalchemy.schema import SchemaItem

from idempotent.schema.columns import binary, exact_text, long_binary, our_table
from idempotent.schema.names import DEFAULT_TABLE, ERROR_TEXT_LENGTH, outbox_name, validate_table_name

ID_LENGTH: Final = 255
"""Longest message id, subject and order key, in characters."""
DESTINATION_LENGTH: Final = 100
"""Longest name of a destination, in characters."""
LANE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class OutboxTables:
    """The tables of one outbox.

    Attributes:
        waiting: one row for each message that is to be published.
        delayed: messages that wait for their time.
        held: why the messages of a lane are not published, and when they are tried again.
        leases: for each broker, which relay has which bucket, and which relays there are.
    """

    waiting: Table
    delayed: Table
    held: Table
    leases: Table


def outbox_tables(metadata: MetaData, table: str = DEFAULT_TABLE) -> OutboxTables:
    """Define the tables of the outbox of `table` in `metadata`, or return those that an earlier call defined.

    Only an outbox needs them.

    Raises:
        ConfigurationError: the name is invalid, or `metadata` already holds another table of that name.
    """
    name = outbox_name(validate_table_name(table))
    return OutboxTables(
        waiting=our_table(
            metadata,
            name,
            *_message(),
            # The order in which a relay reads a bucket.
            Index(f"ix_{name}_bucket", "bucket", "id"),
            key="id",
            numbered=True,
        ),
        delayed=our_table(
            metadata,
            f"{name}_delayed",
            *_message(),
            Column("due_at", BigInteger, nullable=False),
            Index(f"ix_{name}_due", "due_at"),
            key="id",
            numbered=True,
        ),
        held=our_table(
            metadata,
            f"{name}_held",
            Column("bucket", SmallInteger, nullable=False, autoincrement=False),
            Column("lane", binary(LANE_BYTES), nullable=False),
            Column("first_id", BigInteger, nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("reason", exact_text(ERROR_TEXT_LENGTH), nullable=False),
            Column("held_at", BigInteger, nullable=False),
            Column("due_at", BigInteger, nullable=False),
            Index(f"ix_{name}_held_due", "due_at"),
            key=("bucket", "lane"),
        ),
        leases=our_table(
            metadata,
            f"{name}_leases",
            Column("destination", exact_text(DESTINATION_LENGTH), nullable=False),
            Column("slot", Integer, nullable=False, autoincrement=False),
            Column("owner", binary(LANE_BYTES), nullable=True),
            Column("fence", BigInteger, nullable=False),
            Column("lease_until", BigInteger, nullable=False),
            key=("destination", "slot"),
        ),
    )


def _message() -> list[SchemaItem]:
    return [
        Column("id", BigInteger().with_variant(Integer(), "sqlite"), nullable=False, autoincrement=True),
        Column("bucket", SmallInteger, nullable=False),
        Column("lane", binary(LANE_BYTES), nullable=False),
        Column("message_id", exact_text(ID_LENGTH), nullable=False),
        Column("destination", exact_text(DESTINATION_LENGTH), nullable=False),
        Column("subject", exact_text(ID_LENGTH), nullable=False),
        Column("order_key", exact_text(ID_LENGTH), nullable=True),
        Column("headers", long_binary(), nullable=True),
        Column("body", long_binary(), nullable=True),
        Column("created_at", BigInteger, nullable=False),
    ]
