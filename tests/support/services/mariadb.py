"""MariaDB, or MySQL in a container."""

import os
from pathlib import Path

from tests.support.services import sql
from tests.support.services.docker import Image
from tests.support.services.process import PrivateServer

USER = PASSWORD = DATABASE = "idempotent"
MAX_CONNECTIONS = 400


class PrivateMariaDb(PrivateServer):
    name = "MariaDB"
    debian_package = "mariadb-server"
    programs = ("mariadbd", "mariadb-install-db")
    ping = staticmethod(sql.ping)

    @property
    def url(self) -> str:
        # PyMySQL reads all certificates of the system for each connection that may be encrypted: 20 ms.
        address = f"127.0.0.1:{self.port}/{DATABASE}?ssl_disabled=true"
        return f"mysql+pymysql://{USER}:{PASSWORD}@{address}"

    def _prepare(self) -> None:
        self._temporary.mkdir()
        self._run(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--datadir={self._data}",
                f"--tmpdir={self._temporary}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *self._as_root(),
                *self._fast(),
            ]
        )
        (self.folder / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
            f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n"
        )

    def _command(self) -> list[str]:
        program = self.find("mariadbd")
        assert program is not None
        return [
            program,
            "--no-defaults",
            f"--datadir={self._data}",
            f"--tmpdir={self._temporary}",
            f"--port={self.port}",
            f"--socket={self.folder / 's.sock'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.folder / 'init.sql'}",
            "--bind-address=127.0.0.1",
            # Otherwise 127.0.0.1 is localhost, an account of another name.
            "--skip-name-resolve",
            f"--max-connections={MAX_CONNECTIONS}",
            "--character-set-server=utf8mb4",
            *self._as_root(),
            *self._fast(),
        ]

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def _temporary(self) -> Path:
        # A server that starts removes every temporary table it finds, its neighbours' too.
        return self.folder / "tmp"

    @staticmethod
    def _as_root() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    @staticmethod
    def _fast() -> list[str]:
        return [
            # 2: every commit reaches the system, which writes it down when it likes.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",
            "--innodb-log-file-size=32M",
            "--innodb-buffer-pool-size=64M",
        ]


IMAGE = Image(
    "mysql:8.4",
    port=3306,
    environment={"MYSQL_ROOT_PASSWORD": PASSWORD, "MYSQL_DATABASE": DATABASE},
    command=f"--max-connections={MAX_CONNECTIONS} --innodb-flush-log-at-trx-commit=2 --skip-log-bin",
    url=f"mysql+pymysql://root:{PASSWORD}@{{host}}:{{port}}/{DATABASE}",
)
