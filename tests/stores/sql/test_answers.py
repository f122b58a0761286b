"""A server that stops answering while a command uses it."""

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from idempotent.stores.sql.answers import limit_answers
from tests.support.services import PrivateMariaDb, PrivatePostgres

LIMIT_S = 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PrivateMariaDb, PrivatePostgres])
def test_a_server_that_freezes_in_the_middle_is_an_error_after_a_while(spare, kind):
    server = spare(kind)
    engine = sa.create_engine(server.url)
    limit_answers(engine, LIMIT_S)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
        server.pause()
        try:
            with pytest.raises(OperationalError, match=r"no answer for 2 seconds|timed out"):
                connection.scalar(sa.text("SELECT 1"))
        finally:
            server.resume()
            connection.invalidate()
    engine.dispose()


@pytest.mark.slow
def test_a_living_postgresql_may_take_longer(postgres_url):
    engine = sa.create_engine(postgres_url)
    limit_answers(engine, LIMIT_S)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 7 FROM pg_sleep(5)")) == 7
    engine.dispose()
