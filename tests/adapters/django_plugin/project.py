"""A project of Django: its settings, made once in a process, and its databases, by alias."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import django
import pymysql
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.backends.signals import connection_created
from sqlalchemy import make_url

ENGINES = {"sqlite": "sqlite3", "mysql": "mysql", "mariadb": "mysql", "postgresql": "postgresql"}
APPS = ["django.contrib.contenttypes", "idempotent.adapters.django", "tests.adapters.django_plugin.shop"]


def database_of(url: str, **options: Any) -> dict[str, Any]:
    """What the setting DATABASES says of a URL."""
    made = make_url(url)
    found: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{ENGINES[made.get_backend_name()]}",
        "NAME": made.database,
        "USER": made.username or "",
        "PASSWORD": made.password or "",
        "HOST": made.host or "",
        "PORT": str(made.port or ""),
    }
    if made.get_backend_name() in ("mysql", "mariadb"):
        found["OPTIONS"] = {"ssl_disabled": True, "charset": "utf8mb4"}
    return found | options


def configure(databases: dict[str, dict[str, Any]] | None = None, **options: Any) -> None:
    """Set Django up, once in a process. It leaves logging, the time zone and MySQLdb of the process as they are."""
    if settings.configured:
        return
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES=databases or {"default": {}},
        INSTALLED_APPS=APPS,
        LOGGING_CONFIG=None,
        MIDDLEWARE=["idempotent.adapters.django.IdempotencyKeyMiddleware"],
        ROOT_URLCONF="tests.adapters.django_plugin.shop.urls",
        SECRET_KEY="tests",
        USE_TZ=True,
        **options,
    )
    load_mysql()
    django.setup()


def load_mysql() -> None:
    """Let Django find PyMySQL as MySQLdb, and nobody else in this process."""
    before = set(sys.modules)
    pymysql.install_as_MySQLdb()
    try:
        import_module("django.db.backends.mysql.base")
    finally:
        for name in {"MySQLdb", "_mysql"} - before:
            sys.modules.pop(name, None)


def add_database(alias: str, url: str) -> None:
    """Make a database known, and make its tables."""
    made = connections.configure_settings({"default": {}, alias: database_of(url)})
    connections.settings[alias] = made[alias]
    call_command("migrate", database=alias, verbosity=0)


def empty(alias: str) -> None:
    """Delete all rows of the plug-in and of the shop."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        for table in ("deduplicate_tbl", "deduplicate_tbl_failures", "shop_effect"):
            cursor.execute(f"DELETE FROM {table}")
    connection.close()


@contextmanager
def connections_closed() -> Iterator[None]:
    """Close what the threads of a test have connected: Django leaves that to who starts a thread."""
    made: list[Any] = []

    def note(connection: Any, **_: Any) -> None:
        made.append(connection.connection)

    connection_created.connect(note)
    try:
        yield
    finally:
        connection_created.disconnect(note)
        connections.close_all()
        for raw in made:
            with suppress(Exception):
                raw.close()


def write(alias: str, name: str) -> None:
    """Let an effect happen."""
    from tests.adapters.django_plugin.shop.models import Effect

    Effect.objects.using(alias).create(name=name)


def effects(alias: str) -> list[str]:
    """What happened, as this thread's connection sees it."""
    from tests.adapters.django_plugin.shop.models import Effect

    return list(Effect.objects.using(alias).order_by("id").values_list("name", flat=True))
