"""The connectors of docs/outbox-debezium.md."""

import re

from tests.project.house import ROOT

PAGE = ROOT / "docs" / "outbox-debezium.md"
ROUTER = "transforms.outbox."


def connectors():
    """The settings of the page's two blocks: for PostgreSQL, and what is different for MariaDB."""
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    postgres, mariadb = (dict(line.split("=", 1) for line in block.splitlines()) for block in blocks)
    return postgres, mariadb


def router():
    """The settings of the event router, and the columns that they name, by setting."""
    settings = {
        name.removeprefix(ROUTER): value for name, value in connectors()[0].items() if name.startswith(ROUTER)
    }
    columns = {
        name: value
        for name, value in settings.items()
        if name.startswith("table.field.") or name == "route.by.field"
    }
    for placed in settings["table.fields.additional.placement"].split(","):
        column, _, alias = placed.split(":")
        columns[alias] = column
    return settings, columns
