"""A table that handlers write to, and processes that die while they do."""

import os
from collections import Counter
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.pool import NullPool


@dataclass(frozen=True)
class RowsWritten:
    """Picklable. No key is unique, unless asked for: a row that was written twice is there twice."""

    url: str
    name: str

    @property
    def _table(self):
        return sa.Table(self.name, sa.MetaData(), sa.Column("k", sa.String(64), nullable=False))

    def create(self, *, unique=False):
        table = self._table
        if unique:
            table.append_constraint(sa.UniqueConstraint("k"))
        with self._begin() as connection:
            table.create(connection)

    def drop(self):
        with self._begin() as connection:
            self._table.drop(connection)

    def write(self, rows, connection):
        """A handler."""
        connection.execute(self._table.insert(), [{"k": row["k"]} for row in rows])

    @property
    def times(self):
        """The number of rows of each key."""
        with self._begin() as connection:
            return Counter(connection.execute(sa.select(self._table.c.k)).scalars())

    def _begin(self):
        return sa.create_engine(self.url, poolclass=NullPool).begin()


def exit_code_of(function, *arguments):
    """Call it in a forked process, as Spark's daemon forks its workers; 1 if it raises."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
