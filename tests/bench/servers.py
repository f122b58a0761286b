"""Servers as their makers ship them: a commit is on the disk before it is answered."""

from __future__ import annotations

from tests.support.services import PrivateMariaDb, PrivatePostgres, PrivateRedis


def mariadb(*options: str) -> PrivateMariaDb:
    """MariaDB with its own defaults for durability; the tests' server waits for no disk."""
    return PrivateMariaDb(
        "--innodb-flush-log-at-trx-commit=1",
        "--innodb-flush-method=O_DIRECT",
        "--innodb-log-file-size=96M",
        "--innodb-buffer-pool-size=128M",
        *options,
    )


def postgres(*options: str) -> PrivatePostgres:
    """PostgreSQL with its own defaults for durability."""
    return PrivatePostgres(
        "-c", "fsync=on", "-c", "full_page_writes=on", "-c", "shared_buffers=128MB", *options
    )


def redis(*options: str) -> PrivateRedis:
    """Redis, in memory."""
    return PrivateRedis("--maxmemory-policy", "noeviction", *options)
