"""PostgreSQL, and PgBouncer before it."""

import shutil
import signal
from pathlib import Path

from sqlalchemy import make_url

from tests.support.services import sql
from tests.support.services.docker import Image
from tests.support.services.process import PrivateServer

USER = PASSWORD = "idempotent"
DATABASE = "postgres"
# `fsync=off`: a commit reaches the system, which writes it down when it likes.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "400", "shared_buffers": "64MB"}
_SETTING_OPTIONS = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]


class PrivatePostgres(PrivateServer):
    name = "PostgreSQL"
    debian_package = "postgresql"
    programs = ("postgres", "initdb")
    account = "postgres"
    # The fast shutdown: SIGTERM would wait for every client to leave.
    stop_signal = signal.SIGINT
    ping = staticmethod(sql.ping)

    @classmethod
    def find(cls, program: str) -> str | None:
        """Debian keeps these programs out of PATH, in one folder per version."""
        versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"), key=_version)
        return str(versions[-1]) if versions else shutil.which(program)

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{DATABASE}"

    def _prepare(self) -> None:
        password = self.folder / "password"
        password.write_text(PASSWORD)
        self._run(
            [
                self._program("initdb"),
                f"--pgdata={self._data}",
                f"--username={USER}",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ]
        )

    def _command(self) -> list[str]:
        server = [self._program("postgres"), "-D", self._data, "-k", str(self.folder)]
        return [*server, "-h", "127.0.0.1", "-p", str(self.port), *_SETTING_OPTIONS]

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _program(self, name: str) -> str:
        path = self.find(name)
        assert path is not None
        return path


class PrivatePgBouncer(PrivateServer):
    """A pooler in transaction mode, with fewer sessions of the server than its clients have.

    Args:
        target: the URL of the server.
    """

    name = "PgBouncer"
    debian_package = "pgbouncer"
    programs = ("pgbouncer",)
    account = "postgres"
    ping = staticmethod(sql.ping)

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = make_url(target)

    @property
    def url(self) -> str:
        return self._target.set(host="127.0.0.1", port=self.port).render_as_string(hide_password=False)

    @classmethod
    def find(cls, program: str) -> str | None:
        """Debian keeps it out of an ordinary user's PATH."""
        return shutil.which(program) or shutil.which(program, path="/usr/sbin")

    def _prepare(self) -> None:
        to = self._target
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={to.host} port={to.port} user={to.username} password={to.password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\n"
        )

    def _command(self) -> list[str]:
        program = self.find("pgbouncer")
        assert program is not None
        return [program, str(self.folder / "pgbouncer.ini")]


def _version(program: Path) -> float:
    try:
        return float(program.parts[-3])
    except ValueError:
        return 0.0


IMAGE = Image(
    "postgres:17",
    port=5432,
    environment={"POSTGRES_USER": USER, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": DATABASE},
    command=" ".join(["postgres", *_SETTING_OPTIONS]),
    url=f"postgresql+psycopg://{USER}:{PASSWORD}@{{host}}:{{port}}/{DATABASE}",
)
