"""An application's own Alembic project, with one table of its own beside ours."""

from pathlib import Path

from alembic import command
from alembic.config import Config

ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from idempotent.migrations import ignore_dedup_tables
from idempotent.schema import dedup_tables

metadata = MetaData()
Table("{table}_theirs", metadata, Column("id", Integer, primary_key=True))
if "{way}" == "target_metadata":
    dedup_tables(metadata, "{table}")
    ours = None
else:
    ours = ignore_dedup_tables("{table}")

def mine(item, name, type_, reflected, compare_to):
    # The database has tables of other tests.
    if type_ == "table" and not (name == "{table}" or name.startswith("{table}_")):
        return False
    return ours is None or ours(item, name, type_, reflected, compare_to)

engine = create_engine("{url}")
with engine.begin() as connection:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_object=mine,
        version_table="{table}_own_version",
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
MAKO = """
from alembic import op
import sqlalchemy as sa
${imports if imports else ""}
from idempotent.migrations import create_dedup_table, drop_dedup_table
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
"""
BY_HAND = """
def upgrade():
    op.create_table("{table}_theirs", sa.Column("id", sa.Integer, primary_key=True))
    create_dedup_table(table="{table}")

def downgrade():
    drop_dedup_table(table="{table}")
    op.drop_table("{table}_theirs")
"""


class Project:
    """`way`: how env.py tells autogenerate about our tables, ``target_metadata`` or ``include_object``."""

    def __init__(self, folder, url, table, way):
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(ENV.format(url=url, table=table, way=way))
        (folder / "script.py.mako").write_text(MAKO)
        self.config = Config()
        self.config.set_main_option("script_location", str(folder))
        self.table = table

    def write_by_hand(self):
        """A first migration that makes the application's table and ours."""
        path = Path(command.revision(self.config, "create").path)
        head = path.read_text().split("def upgrade")[0]
        path.write_text(head + BY_HAND.format(table=self.table))

    def autogenerate(self):
        """Bodies of the upgrade and downgrade that autogenerate writes, without its comments."""
        source = Path(command.revision(self.config, "auto", autogenerate=True).path).read_text()
        bodies = source.split("def upgrade():\n")[1].split("def downgrade():\n")
        return tuple(
            "\n".join(line.strip() for line in body.splitlines() if line.strip() and line.strip()[0] != "#")
            for body in bodies
        )

    def up(self):
        command.upgrade(self.config, "head")

    def down(self):
        command.downgrade(self.config, "base")
