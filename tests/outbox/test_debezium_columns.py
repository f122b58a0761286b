"""What docs/outbox-debezium.md says of the outbox's columns is so."""

import pytest
import sqlalchemy as sa

from idempotent.adapters.copies import KEY_HEADER
from idempotent.schema import DEFAULT_TABLE, outbox_name
from tests.clients.debezium.page import connectors, router

# Of Debezium 3: io.debezium.transforms.outbox.EventRouterConfigDefinition.
OPTIONS = {
    "table.op.invalid.behavior",
    "table.field.event.id",
    "table.field.event.key",
    "table.field.event.type",
    "table.field.event.timestamp",
    "table.field.event.payload",
    "table.fields.additional.placement",
    "table.fields.additional.error.on.missing",
    "table.field.event.schema.version",
    "route.by.field",
    "route.topic.regex",
    "route.topic.replacement",
    "route.tombstone.on.empty.payload",
    "table.expand.json.payload",
    "table.json.payload.null.behavior",
}


@pytest.mark.parametrize("sql_store", ["postgres", "mysql"], indirect=True)
def test_the_router_is_given_columns_that_the_database_has_with_types_that_it_takes(sql_store, tables):
    columns = {
        column["name"]: column
        for column in sa.inspect(sql_store.admin_engine).get_columns(tables.waiting.name)
    }
    _, named = router()
    kinds = {name: columns[column]["type"].python_type for name, column in named.items()}
    assert kinds == {
        "table.field.event.id": str,
        "table.field.event.key": str,
        "table.field.event.payload": bytes,
        "route.by.field": str,
        KEY_HEADER: str,
    }
    # The router reads a text here, and would stop at NULL.
    assert not columns[named["route.by.field"]]["nullable"]
    assert not columns[named["table.field.event.id"]]["nullable"]
    # What the page says is left out, or not taken.
    assert columns["headers"]["type"].python_type is bytes
    assert columns["created_at"]["type"].python_type is int


def test_the_page_gives_the_router_options_that_it_has():
    settings, _ = router()
    assert settings.keys() - {"type"} <= OPTIONS


def test_the_connectors_capture_the_outbox_of_the_default_table():
    for settings in connectors():
        assert settings["table.include.list"].split(".")[-1] == outbox_name(DEFAULT_TABLE)
