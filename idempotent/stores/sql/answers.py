"""limit_answers: commands that a person waits for do not wait for a server that is frozen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any, Final

from sqlalchemy import Engine, event

_NOT_READY: Final = 0
"""What psycopg tells its generators, a few times a second, while nothing comes."""
_CONNECT_TIMEOUT_S: Final = 10


def limit_answers(engine: Engine, seconds: int) -> None:
    """Let a statement on a new connection fail whose answer does not come.

    A server that is frozen keeps its connections: its machine acknowledges what it gets, so nothing else ends the wait.
    MySQL has `seconds` for each answer, or what the URL says: `?read_timeout=600`. PostgreSQL may take any time if it
    accepts another connection after each `seconds`. SQLite has no server.
    """
    if engine.dialect.name in ("mysql", "mariadb"):

        @event.listens_for(engine, "do_connect")
        def _limit(_dialect: Any, _record: Any, _args: Any, params: dict[str, Any]) -> None:
            params.setdefault("read_timeout", seconds)
            params.setdefault("write_timeout", seconds)

    elif engine.dialect.name == "postgresql":

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: Any, _record: Any, args: Any, params: dict[str, Any]) -> Any:
            return _watched(args, {"connect_timeout": _CONNECT_TIMEOUT_S, **params}, seconds)


def _watched(args: Any, params: dict[str, Any], seconds: int) -> Any:
    """A connection of psycopg, which itself waits without a limit."""
    import psycopg

    def demand_alive() -> None:
        try:
            psycopg.connect(*args, **params).close()
        except psycopg.Error as error:
            raise psycopg.OperationalError(
                f"no answer for {seconds} seconds, and no other connection: {error}"
            ) from error

    class WatchedConnection(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(_with_looks(gen, seconds, demand_alive), *args, **kwargs)

    return WatchedConnection.connect(*args, **params)


def _with_looks(
    waiting: Generator[Any, Any, Any], seconds: int, look: Callable[[], object]
) -> Generator[Any, Any, Any]:
    """The generator of a wait, with a look after each of its silences."""
    until, ready = time.monotonic() + seconds, None
    with contextlib.closing(waiting):
        while True:
            try:
                wanted = waiting.send(ready)
            except StopIteration as done:
                return done.value
            ready = yield wanted
            now = time.monotonic()
            if ready == _NOT_READY and now > until:
                look()
            if ready != _NOT_READY or now > until:
                until = time.monotonic() + seconds
