"""Django: `DjangoChecker`, whose keys commit with what a view or a function writes, and `IdempotencyKeyMiddleware`.

Add `"idempotent.adapters.django"` to INSTALLED_APPS, and type `python manage.py migrate`.
"""

from __future__ import annotations

from idempotent.errors import MissingExtraError

try:
    import django  # noqa: F401 - only checks that it is installed
except ImportError as error:
    raise MissingExtraError("django", "django") from error

from idempotent.adapters.django.checker import DjangoChecker
from idempotent.adapters.django.middleware import IdempotencyKeyMiddleware, authorization

__all__ = ["DjangoChecker", "IdempotencyKeyMiddleware", "authorization"]
