"""Engines of the demo."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, event

from idempotent.sql.connections import engine_from

_CACHE_KB = 64 * 1024


def demo_engine(url: str) -> Engine:
    """An engine. On SQLite it is made for many small commits, which a killed process cannot undo either.

    Raises:
        ConfigurationError: not the URL of a supported database.
        MissingExtraError: its driver is not installed.
    """
    engine = engine_from(url)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _tune(connection: Any, _record: Any) -> None:
            # Keys are random, so every page of their index is always in use.
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KB}")
            # With a write-ahead log this risks the last commits at a power cut, and nothing at a kill.
            connection.execute("PRAGMA synchronous=NORMAL")

    return engine
