"""Home: the database that the relay of an outbox reads, which must be the one that Sessions write to."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakSet

from sqlalchemy import URL, Engine

from idempotent.logs import EventLog

log = EventLog(__name__)


class Home:
    """Warns of messages that no relay of this outbox will find.

    It compares the kind and the name of the databases. Hosts differ behind a proxy, and a proxy may give a database
    another name, so it is a warning.

    Args:
        url: of the outbox's engine.
    """

    def __init__(self, url: URL) -> None:
        self._url = url
        self._known: WeakSet[Engine] = WeakSet()

    def check(self, engine: Engine) -> None:
        """Warn, once for each engine, if it is that of another database."""
        if engine in self._known:
            return
        self._known.add(engine)
        here, there = _database(self._url), _database(engine.url)
        if None not in (*here, *there) and here != there:
            log.warning(
                "outbox_elsewhere",
                extra={
                    "written_to": engine.url.render_as_string(hide_password=True),
                    "outbox": self._url.render_as_string(hide_password=True),
                    "hint": "give the Outbox, and its relay, the engine of the database that the Sessions write to",
                },
            )


def _database(url: URL) -> tuple[str | None, str | None]:
    kind = "mysql" if url.get_backend_name() == "mariadb" else url.get_backend_name()
    name = url.database or None
    if kind == "sqlite" and name is not None:
        name = str(Path(name).resolve())
    return kind, name
