"""A proxy that splits reads, as ProxySQL, MaxScale and pgpool-II do: a SELECT of its own goes to a replica.

The replica is another schema of the same server, with what the tables held when it was refreshed the last time.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import sqlalchemy as sa

from tests.support.stores import Store

_READ = 1 << 16
_COMMENT = re.compile(rb"\s*/\*.*?\*/\s*", re.DOTALL)
_STARTUP = 196_608
_COM_INIT_DB, _COM_QUERY = 2, 3


class Replica:
    """A copy of tables, which lags until `refresh`.

    Args:
        engine: of the server; may create schemas.
        tables: the names of the tables.
    """

    def __init__(self, engine: sa.Engine, tables: Sequence[str]) -> None:
        self.schema = f"replica_{secrets.token_hex(6)}"
        self._engine = engine
        self._tables = tables
        self._run(f"CREATE SCHEMA {self.schema}")
        self.home = self._run("SELECT DATABASE()" if self._is_mysql else "SELECT current_schema()")
        for copy, table in self._pairs():
            like = f"LIKE {table}" if self._is_mysql else f"(LIKE {table} INCLUDING ALL)"
            self._run(f"CREATE TABLE {copy} {like}")
        self.refresh()

    def refresh(self) -> None:
        """Hold what the tables hold now."""
        given = "" if self._is_mysql else " OVERRIDING SYSTEM VALUE"
        with self._engine.begin() as connection:
            for copy, table in self._pairs():
                connection.exec_driver_sql(f"DELETE FROM {copy}")
                connection.exec_driver_sql(f"INSERT INTO {copy}{given} SELECT * FROM {table}")

    def drop(self) -> None:
        self._run(f"DROP SCHEMA {self.schema}{'' if self._is_mysql else ' CASCADE'}")

    @property
    def _is_mysql(self) -> bool:
        return self._engine.dialect.name != "postgresql"

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for table in self._tables:
            yield f"{self.schema}.{table}", f"{self.home}.{table}"

    def _run(self, statement: str) -> str:
        with self._engine.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return str(result.scalar_one()) if result.returns_rows else ""


class SplittingProxy:
    """Listens on 127.0.0.1, and sends each SELECT outside of a transaction to a replica.

    Args:
        url: of the server.
        replica: the copy.

    Attributes:
        url: of the proxy.
        diverted: the statements that the replica got.
        statements: how many statements there were.
    """

    def __init__(self, url: sa.URL, replica: Replica) -> None:
        self._url, self._replica = url, replica
        self.diverted: list[str] = []
        self.statements = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.set(host="127.0.0.1", port=port)
        if url.get_backend_name() == "postgresql":
            # A prepared statement would be looked up by its name.
            self.url = self.url.update_query_dict({"prepare_threshold": "None", "sslmode": "disable"})
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection((self._url.host or "", self._url.port or 0)) as server,
        ):
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = (_Postgres if self._url.get_backend_name() == "postgresql" else _MySql)(server)
            session, at_replica, asked = _Session(), False, b""
            while True:
                ready = select.select([server, client], [], [])[0][0]
                data = ready.recv(_READ)
                if not data:
                    return
                if ready is server:
                    client.sendall(data)
                    continue
                asked += data
                while message := link.message(asked):
                    asked = asked[len(message) :]
                    text = link.statement(message)
                    if text is not None:
                        self.statements += 1
                        alone = not session.is_open_in(text)
                        reads = alone and text.lstrip(b"( ").upper().startswith(b"SELECT")
                        if reads and b"@@" not in text:  # SQLAlchemy asks for settings
                            self.diverted.append(text.decode(errors="replace"))
                        if reads is not at_replica:
                            at_replica = reads
                            link.use(self._replica.schema if reads else self._replica.home)
                    server.sendall(message)


class _Session:
    """What a client said about transactions."""

    def __init__(self) -> None:
        self._is_open, self._autocommits = False, True

    def is_open_in(self, text: bytes) -> bool:
        """Whether a statement is in a transaction."""
        words = text.upper().split()
        if words[:3] == [b"SET", b"AUTOCOMMIT", b"="]:
            self._autocommits = words[3] == b"1"
        if words[:1] in ([b"BEGIN"], [b"START"]):
            self._is_open = True
        elif words[:1] == [b"COMMIT"] or words == [b"ROLLBACK"]:
            self._is_open = False
        return self._is_open or not self._autocommits


class _Link(ABC):
    """The connection to the server, which has answered all that was asked when a client asks again."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server

    @abstractmethod
    def message(self, data: bytes) -> bytes:
        """The first whole message of a client; empty: it has not arrived."""

    @abstractmethod
    def statement(self, message: bytes) -> bytes | None:
        """The statement in a message, without comments before it."""

    @abstractmethod
    def use(self, schema: str) -> None:
        """Change the schema."""

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._server.recv(size - len(data))
            if not part:
                raise OSError("the server hung up")
            data += part
        return data


class _Postgres(_Link):
    _is_started = False

    def message(self, data: bytes) -> bytes:
        head = 1 if self._is_started else 0
        if len(data) < head + 4:
            return b""
        size = head + int.from_bytes(data[head : head + 4])
        if len(data) < size:
            return b""
        if not self._is_started:
            self._is_started = int.from_bytes(data[4:8]) == _STARTUP
        return data[:size]

    def statement(self, message: bytes) -> bytes | None:
        match message[:1]:
            case b"Q":
                text = message[5:-1]
            case b"P":
                text = message[5:].split(b"\0")[1]
            case _:
                return None
        return _COMMENT.sub(b"", text, count=1)

    def use(self, schema: str) -> None:
        text = f"SET search_path = {schema}".encode() + b"\0"
        self._server.sendall(b"Q" + (len(text) + 4).to_bytes(4) + text)
        kind = b""
        while kind != b"Z":
            kind = self._exactly(1)
            self._exactly(int.from_bytes(self._exactly(4)) - 4)


class _MySql(_Link):
    def message(self, data: bytes) -> bytes:
        size = 4 + int.from_bytes(data[:3], "little")
        return data[:size] if len(data) >= max(size, 4) else b""

    def statement(self, message: bytes) -> bytes | None:
        # An answer to the server's greeting has another number.
        return _COMMENT.sub(b"", message[5:], count=1) if message[3:5] == bytes([0, _COM_QUERY]) else None

    def use(self, schema: str) -> None:
        text = bytes([_COM_INIT_DB]) + schema.encode()
        self._server.sendall(len(text).to_bytes(3, "little") + b"\0" + text)
        answer = self._exactly(int.from_bytes(self._exactly(4)[:3], "little"))
        assert answer[0] == 0, answer


@contextlib.contextmanager
def split(store: Store) -> Iterator[tuple[SplittingProxy, Replica]]:
    """A proxy before a store, and the replica of the store's tables."""
    names = sa.inspect(store.admin_engine).get_table_names()
    replica = Replica(store.admin_engine, [name for name in names if name.startswith(store.table)])
    proxy = SplittingProxy(sa.make_url(store.url), replica)
    try:
        yield proxy, replica
    finally:
        store.opened.close()
        proxy.close()
        replica.drop()
