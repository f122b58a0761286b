"""Django's databases, by alias: each has the name of its kind."""

from __future__ import annotations

import pytest
from django.db import connections

from tests.adapters.django_plugin.project import add_database, configure, empty
from tests.support.services import own_database

KINDS = ("sqlite", "mysql", "postgres")


@pytest.fixture(scope="session")
def sqlite_project(tmp_path_factory):
    yield from made("sqlite", f"sqlite:///{tmp_path_factory.mktemp('django')}/shop.db")


@pytest.fixture(scope="session")
def mysql_project(mysql_url):
    with own_database(mysql_url, "django") as url:
        yield from made("mysql", url)


@pytest.fixture(scope="session")
def postgres_project(postgres_url):
    with own_database(postgres_url, "django") as url:
        yield from made("postgres", url)


def made(alias, url):
    configure()
    add_database(alias, url)
    yield url
    connections[alias].close()


@pytest.fixture(params=KINDS)
def alias(request):
    """The alias of an empty database."""
    request.getfixturevalue(f"{request.param}_project")
    yield request.param
    empty(request.param)


@pytest.fixture
def url(request, alias):
    """The same database, in SQLAlchemy's words."""
    return request.getfixturevalue(f"{alias}_project")


@pytest.fixture
def postgres(postgres_project):
    """The alias of an empty database of PostgreSQL."""
    yield "postgres"
    empty("postgres")
