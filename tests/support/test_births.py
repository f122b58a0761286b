"""The warning of psycopg about a connection that is left open."""

import psycopg
import pytest
import sqlalchemy as sa


def test_it_names_the_test_that_opened_the_connection(postgres_url):
    url = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    left = [psycopg.connect(url)]
    with pytest.warns(
        ResourceWarning, match="Opened in .*test_it_names_the_test.*, in MainThread, by .*connect"
    ):
        left.clear()
