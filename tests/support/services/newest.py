"""Run a command against servers newer than this machine's: `python -m tests.support.services.newest COMMAND...`.

`make servers-newest` has downloaded them. The command finds them through the variables of `selection.py`. It runs with
MySQL; then its tests of MySQL run again with MariaDB. The servers end with this process.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.services import MYSQL, POSTGRES, RABBITMQ, REDIS, Service
from tests.support.services.process import ServerFailedError, die_with_this_process, free_port
from tests.support.services.waiting import wait_until_it_answers

_PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idempotent-tests" / "newest"
_USER = "idempotent"
_SQL = f"""
CREATE USER IF NOT EXISTS '{_USER}'@'%' IDENTIFIED BY '{_USER}';
GRANT ALL ON *.* TO '{_USER}'@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS {_USER} CHARACTER SET utf8mb4;
"""
_MYSQL = f"""
cat > init.sql <<'.'
{_SQL}
.
chown -R nobody .
{{prepare}}
exec {{server}} --no-defaults --user=nobody --datadir=$PWD/data --port=$PORT --socket=$PWD/s.sock --pid-file=$PWD/pid \
  --bind-address=127.0.0.1 --init-file=$PWD/init.sql --skip-name-resolve --max-connections=400 --skip-log-bin \
  --innodb-lock-wait-timeout=1 --innodb-flush-log-at-trx-commit=2 {{options}}
"""


@dataclass(frozen=True, slots=True)
class Newest:
    """A server of a newer release.

    Args:
        service: what it is to the tests.
        root: the folder of its release.
        url: how tests reach it.
        script: starts it, with its own folder as the current one and the variable PORT.
    """

    service: Service
    root: str
    url: str
    script: str


MYSQL_9 = Newest(
    MYSQL,
    "sid",
    # The proxies of some tests look for COMMIT in the packets.
    f"mysql+pymysql://{_USER}:{_USER}@127.0.0.1:{{port}}/{_USER}?ssl_disabled=true",
    _MYSQL.format(
        prepare="mysqld --no-defaults --initialize-insecure --user=nobody --datadir=$PWD/data",
        server="mysqld",
        options="--mysqlx=OFF --secure-file-priv=",
    ),
)
MARIADB_11 = Newest(
    MYSQL,
    "trixie",
    MYSQL_9.url,
    _MYSQL.format(
        prepare=(
            "mariadb-install-db --no-defaults --user=nobody --datadir=$PWD/data"
            " --auth-root-authentication-method=normal --skip-test-db"
        ),
        server="mariadbd",
        options="",
    ),
)
OTHERS = (
    Newest(
        POSTGRES,
        "trixie",
        f"postgresql+psycopg://{_USER}:{_USER}@127.0.0.1:{{port}}/postgres",
        f"""
bin=$(ls -d /usr/lib/postgresql/*/bin)
printf %s {_USER} > password
chown -R postgres .
as="setpriv --reuid=postgres --regid=postgres --clear-groups"
$as $bin/initdb -D data -U {_USER} --pwfile=password --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync
exec $as $bin/postgres -D $PWD/data -k $PWD -p $PORT -h 127.0.0.1 -c max_connections=400 -c fsync=off
""",
    ),
    Newest(
        REDIS,
        "trixie",
        f"redis://:{_USER}@127.0.0.1:{{port}}/0",
        f"exec redis-server --port $PORT --bind 127.0.0.1 --save '' --databases 64 --requirepass {_USER}",
    ),
    Newest(
        RABBITMQ,
        "trixie",
        f"amqp://{_USER}:{_USER}@127.0.0.1:{{port}}/%2F",
        f"""
cat > rabbitmq.conf <<.
listeners.tcp.1 = 127.0.0.1:$PORT
default_user = {_USER}
default_pass = {_USER}
default_user_tags.administrator = true
disk_free_limit.absolute = 1MB
.
echo '[].' > plugins
chown -R rabbitmq .
export HOME=$PWD ERL_EPMD_ADDRESS=127.0.0.1 ERL_EPMD_PORT=$((PORT + 1)) RABBITMQ_NODENAME=newest-$PORT@localhost
export RABBITMQ_DIST_PORT=$((PORT + 2)) RABBITMQ_MNESIA_BASE=$PWD/data RABBITMQ_LOG_BASE=$PWD RABBITMQ_PID_FILE=$PWD/pid
export RABBITMQ_CONFIG_FILE=$PWD/rabbitmq.conf RABBITMQ_ENABLED_PLUGINS_FILE=$PWD/plugins
exec setpriv --reuid=rabbitmq --regid=rabbitmq --clear-groups /usr/lib/rabbitmq/bin/rabbitmq-server
""",
    ),
)


@contextmanager
def running(newest: Newest) -> Iterator[str]:
    """The URL of a server that runs in the folder of its release."""
    root = Path(os.environ.get("IDEMPOTENT_NEWEST", _PLACE)) / newest.root
    if not (root / ".complete").exists():
        raise ServerFailedError(f"{newest.service.name} is not in {root}: make servers-newest")
    folder = root / "srv" / f"idem-{secrets.token_hex(4)}"
    folder.mkdir()
    folder.chmod(0o755)
    port = free_port()
    url = newest.url.format(port=port)
    # In a namespace of its own, which ends with its first process: the shell, which stays root. The kernel would forget
    # to kill a process that has changed its account.
    inside = f"cd /srv/{folder.name} && PORT={port}\n{newest.script}"
    command = 'mount -t proc proc "$0/proc" && chroot "$0" sh -ec "$1"; exit $?'
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *die_with_this_process(),
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                command,
                str(root),
                inside,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def check_alive() -> None:
        if process.poll() is not None:
            raise ServerFailedError(
                f"{newest.service.name}: {(folder / 'log').read_text(errors='replace')[-3000:]}"
            )

    try:
        ping: Callable[[str], None] = newest.service.private.ping
        wait_until_it_answers(lambda: ping(url), check_alive)
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main(command: list[str]) -> int:
    """Run the command with MySQL, and with `-k mysql` also with MariaDB; the first exit code that is not 0."""
    codes = []
    with ExitStack() as opened:
        environ = os.environ | {each.service.variable: opened.enter_context(running(each)) for each in OTHERS}
        for mysql, more in ((MYSQL_9, []), (MARIADB_11, ["-k", "mysql"])):
            with running(mysql) as url:
                done = subprocess.run([*command, *more], check=False, env=environ | {MYSQL.variable: url})
            codes.append(done.returncode)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ServerFailedError as error:
        sys.exit(str(error))
