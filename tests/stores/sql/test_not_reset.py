"""What the log says of a connection that could not be reset."""

import sqlalchemy as sa

from idempotent.stores.sql.detached import DetachedConnections
from tests.support.logs import logged


def test_an_error_of_the_reset_is_logged_without_the_values_that_it_quotes(postgres_url, caplog):
    engine = sa.create_engine(postgres_url)

    def fail(raw, _):
        raw.execute("SELECT %s::text::int", ["a customer"])

    connections = DetachedConnections(engine, autocommit=False)
    sa.event.listen(engine, "checkin", fail)
    connections.give_back(connections.take())
    (record,) = logged(caplog, "connection_not_reset")
    assert "invalid input syntax" in record.error
    assert "a customer" not in record.error
    connections.close()
    engine.dispose()
