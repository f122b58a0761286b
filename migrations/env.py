"""Environment for the plain ``alembic`` command, for its history, stamp and ``--sql`` output.

The library itself does not use it (see runner.py). To name another table: ``alembic -x table=NAME ...``.
"""

from __future__ import annotations

from alembic import context

from idempotent.errors import ConfigurationError
from idempotent.migrations.revisions import options
from idempotent.migrations.runner import run
from idempotent.migrations.store import exclusive
from idempotent.schema import DEFAULT_TABLE, validate_table_name

table = validate_table_name(context.get_x_argument(as_dictionary=True).get("table", DEFAULT_TABLE))
url = context.config.get_main_option("sqlalchemy.url")
if not url:
    raise ConfigurationError("sqlalchemy.url is not set: add it to the Alembic configuration")

if context.is_offline_mode():
    context.configure(url=url, literal_binds=True, **options(table))
    with context.begin_transaction():
        run(context.get_context(), table)
else:
    with exclusive(url, table) as connection:
        context.configure(connection=connection, **options(table))
        run(context.get_context(), table)
