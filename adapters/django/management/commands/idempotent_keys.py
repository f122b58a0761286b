"""`python manage.py idempotent_keys`: look at keys, and decide about those that wait for a person."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from idempotent.adapters.django.checker import DjangoChecker
from idempotent.admin import KeyFilter, KeyRecord
from idempotent.claims import KeyStatus
from idempotent.errors import IdempotentError
from idempotent.keys import key_from_text

_MOST: Final = 100


class Command(BaseCommand):  # type: ignore[misc] # Django ships no types
    """What `idempotent keys` does for a URL, for a database of the settings."""

    help = "List keys; or, with KEY, show one, let it run again (--retry), or mark it done (--done)."

    def add_arguments(self, parser: Any) -> None:
        """Add the options."""
        parser.add_argument("key", nargs="?", metavar="KEY", help="Its text or hash, as the list shows it.")
        parser.add_argument(
            "--retry", action="store_true", help="Its effect did not happen: let it run again."
        )
        parser.add_argument("--done", action="store_true", help="Its effect happened: it never runs again.")
        parser.add_argument("--dead", action="store_true", help="List only those that wait for a person.")
        parser.add_argument(
            "--limit", type=int, default=_MOST, help=f"List at most so many (default {_MOST})."
        )
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=tuple(connections),
            help="The alias of the database.",
        )

    def handle(self, *, key: str | None, database: str, **options: Any) -> None:
        """Do it."""
        if options["retry"] and options["done"]:
            raise CommandError("--retry and --done exclude each other")
        if key is None and (options["retry"] or options["done"]):
            raise CommandError("--retry and --done need a KEY")
        admin = DjangoChecker(database).admin()
        try:
            if key is None:
                dead = frozenset({KeyStatus.DEAD} if options["dead"] else ())
                for each in admin.list(KeyFilter(statuses=dead), limit=options["limit"]):
                    self.stdout.write(_line(each))
                return
            meant = key_from_text(key)
            if meant is None:
                raise CommandError(f"{key} is not a key: write subject:group:id, or 40 hex digits")
            found = admin.get(meant)
            if found is None:
                raise CommandError(f"{key} is not stored: its next call runs")
            change = admin.reopen if options["retry"] else admin.mark_done if options["done"] else None
            if change is not None and not change(found):
                raise CommandError(f"{key} was left alone: it has changed meanwhile, or is done already")
        except (IdempotentError, ValueError) as error:
            raise CommandError(str(error)) from error
        said = "runs again with its next call" if options["retry"] else "is done" if options["done"] else ""
        self.stdout.write(f"{found.text} {said}" if said else _line(found))


def _line(record: KeyRecord) -> str:
    words = [record.hash.hex(), record.status.name, record.text]
    if record.last_error is not None:
        words.append(f"({record.attempts} attempts: {record.last_error})")
    return "  ".join(words)
