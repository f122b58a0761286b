"""`python manage.py idempotent_gc`: delete expired keys."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from idempotent.adapters.django.checker import DjangoChecker
from idempotent.errors import IdempotentError


class Command(BaseCommand):  # type: ignore[misc] # Django ships no types
    """For cron, once a day or more often."""

    help = "Delete expired keys, in small batches."

    def add_arguments(self, parser: Any) -> None:
        """Add the options."""
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=tuple(connections),
            help="The alias of the database.",
        )
        parser.add_argument("--batch-size", type=int, default=1000, help="Keys to delete in one transaction.")

    def handle(self, *, database: str, batch_size: int, **_: Any) -> None:
        """Delete them."""
        try:
            deleted = DjangoChecker(database).garbage_collect(batch_size=batch_size)
        except IdempotentError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{deleted} expired keys deleted")
