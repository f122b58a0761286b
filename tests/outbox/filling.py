"""Fills an outbox with many messages, which the server makes: to send them takes minutes."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from idempotent.outbox.entries import BUCKETS

_COLUMNS: Final = "bucket, lane, message_id, destination, subject, order_key, body, created_at"
_SELECT: Final = {
    "postgresql": (
        "get_byte(decode(md5(n::text), 'hex'), 0) % {buckets}, decode(md5(n::text), 'hex'), 'm' || n, '', '{subject}',"
        " 'customer-' || n, decode(repeat('78', 100), 'hex'), n FROM generate_series(1, {rows}) AS n"
    ),
    "mysql": (
        "CONV(LEFT(MD5(seq), 2), 16, 10) % {buckets}, UNHEX(MD5(seq)), CONCAT('m', seq), '', '{subject}',"
        " CONCAT('customer-', seq), REPEAT('x', 100), seq FROM seq_1_to_{rows}"
    ),
}


def fill(engine: sa.Engine, waiting: sa.Table, rows: int, subject: str = "invoices") -> None:
    """Let so many messages wait, each of an order key of its own. Not for SQLite, nor for MySQL."""
    select = _SELECT[engine.dialect.name].format(buckets=BUCKETS, subject=subject, rows=rows)
    with engine.begin() as connection:
        connection.execute(
            sa.text(f"INSERT INTO {waiting.name} ({_COLUMNS}) SELECT {select}".replace(":", r"\:"))
        )
