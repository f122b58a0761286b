"""Limits for answers that do not come, from a server that is frozen or a proxy that forwards nothing any more.

A connection to it stays open: its machine acknowledges what it gets, so nothing else ends the wait.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final
from weakref import ref

from sqlalchemy import Engine, event

from idempotent.stores.sql.cursor import DriverConnection

_NOT_READY: Final = 0
"""What psycopg tells its generators, a few times a second, while nothing comes."""
_CONNECT_TIMEOUT_S: Final = 10
# The first is that of metadata, which LOCK TABLES and ALTER TABLE hold; the second is that of rows.
_MYSQL_LIMIT: Final = "SET SESSION lock_wait_timeout = {0}, SESSION innodb_lock_wait_timeout = {0}"
LOCK_WAIT_S: Final = 5
"""How long a statement waits for a lock, such as that of LOCK TABLE."""


def limit_answers(engine: Engine, seconds: int, *, lock_waits: bool = True) -> None:
    """Let a statement of a command, for which a person waits, fail if its answer does not come, on each new connection.

    MySQL has `seconds` for each answer, or what the URL says: `?read_timeout=600`. PostgreSQL may take any time if it
    accepts another connection after each `seconds`. SQLite has no server.

    A lock of another session has LOCK_WAIT_S, or what the URL says: `?options=-clock_timeout%3D60s`, or for MySQL
    `?init_command=...`.

    Args:
        engine: makes the connections.
        seconds: how long an answer may take.
        lock_waits: limit the waits for locks too.
    """
    if engine.dialect.is_async:
        _limit_async(engine, seconds, lock_waits=lock_waits)
    elif engine.dialect.name in ("mysql", "mariadb"):

        @event.listens_for(engine, "do_connect")
        def _limit(_dialect: Any, _record: Any, _args: Any, params: dict[str, Any]) -> None:
            params.setdefault("read_timeout", seconds)
            params.setdefault("write_timeout", seconds)
            if lock_waits:
                params.setdefault("init_command", _MYSQL_LIMIT.format(LOCK_WAIT_S))

    elif engine.dialect.name == "postgresql":

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: Any, _record: Any, args: Any, params: dict[str, Any]) -> Any:
            known = {"connect_timeout": _CONNECT_TIMEOUT_S, **params}
            return _locked_briefly(args, known, seconds) if lock_waits else _watched(args, known, seconds)


LEAST_ANSWER_S: Final = 3.0
"""A shorter limit would end statements of a busy server, and waits for a locked row."""
_CANCEL_S: Final = 3.0
_connecting: Final = threading.local()


def limit_connecting(engine: Engine) -> None:
    """Let `connecting_within` limit this engine's connections. Those of the application stay as they are."""
    if engine.dialect.name == "sqlite":
        return
    # PyMySQL's own connect_timeout does not include the server's greeting.
    name = "connect_timeout" if engine.dialect.name == "postgresql" else "read_timeout"

    @event.listens_for(engine, "do_connect")
    def _limit(_dialect: Any, _record: Any, _args: Any, params: dict[str, Any]) -> None:
        within_s = getattr(_connecting, "within_s", None)
        if within_s is not None:
            params.setdefault(name, math.ceil(within_s))


@contextlib.contextmanager
def connecting_within(seconds: float) -> Iterator[None]:
    """Let the connections that this thread opens meanwhile fail if the server does not answer."""
    _connecting.within_s = seconds
    try:
        yield
    finally:
        _connecting.within_s = None


def limit_answer(driver: DriverConnection, seconds: float | None) -> None:
    """Let each statement on a connection of ours fail whose answer does not come in time.

    psycopg asks the server to cancel the statement, which may wait for a lock; a libpq that could hang at that (before
    17) leaves it without a limit. What a URL has limited stays: `?read_timeout=600`.

    Args:
        driver: the connection.
        seconds: how long an answer may take; None: any time.
    """
    raw, before = driver.raw, driver.answer_s
    driver.answer_s = seconds
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(raw, psycopg.Connection):
        raw.__dict__.pop("wait", None)
        if seconds is not None and _is_limitable(psycopg, raw):
            raw.wait = _Wait(raw, seconds)
    elif getattr(raw, "_read_timeout", driver) == before:  # PyMySQL takes them only when it connects
        raw._read_timeout = raw._write_timeout = seconds  # noqa: SLF001


def _is_limitable(psycopg: Any, raw: Any) -> bool:
    return type(raw).wait is psycopg.Connection.wait and bool(psycopg.capabilities.has_cancel_safe())


class _Wait:
    """`psycopg.Connection.wait` of one connection, with a limit."""

    def __init__(self, raw: Any, seconds: float) -> None:
        self._raw = ref(raw)
        self._seconds = seconds

    def __call__(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        raw: Any = self._raw()
        return type(raw).wait(raw, _with_looks(gen, self._seconds, self._give_up), *args, **kwargs)

    def _give_up(self) -> None:
        import psycopg

        raw = self._raw()
        with contextlib.suppress(psycopg.Error):
            if raw is not None:
                raw.cancel_safe(timeout=_CANCEL_S)
        raise psycopg.OperationalError(f"no answer for {self._seconds:g} seconds")


def _limit_async(engine: Engine, seconds: int, *, lock_waits: bool) -> None:
    """The limits that asyncio drivers know: psycopg's has none for an answer."""

    @event.listens_for(engine, "do_connect")
    def _limit(_dialect: Any, _record: Any, _args: Any, params: dict[str, Any]) -> None:
        params.setdefault("connect_timeout", _CONNECT_TIMEOUT_S)
        if engine.dialect.name == "postgresql":
            own = params.get("options") or os.environ.get("PGOPTIONS", "")
            if lock_waits:
                params["options"] = f"-c lock_timeout={LOCK_WAIT_S}s {own}".rstrip()
        else:
            params.setdefault("read_timeout", seconds)
            if lock_waits:
                params.setdefault("init_command", _MYSQL_LIMIT.format(LOCK_WAIT_S))


def _locked_briefly(args: Any, params: dict[str, Any], seconds: int) -> Any:
    """A connection whose statements wait for a lock only briefly."""
    import psycopg

    # The last of two settings counts: the user's own. An option of the connection hides the environment's.
    own = params.get("options") or os.environ.get("PGOPTIONS", "")
    limited = {**params, "options": f"-c lock_timeout={LOCK_WAIT_S}s {own}".rstrip()}
    try:
        return _watched(args, limited, seconds)
    except psycopg.OperationalError as error:
        # A PgBouncer that has not been told to ignore it.
        if "unsupported startup parameter" not in str(error):
            raise
        return _watched(args, params, seconds)


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
    waiting: Generator[Any, Any, Any], seconds: float, look: Callable[[], object]
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
