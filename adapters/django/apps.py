"""The application for INSTALLED_APPS: the tables of keys, and the commands."""

from __future__ import annotations

from django.apps import AppConfig


class IdempotentConfig(AppConfig):  # type: ignore[misc] # Django ships no types
    """`"idempotent.adapters.django"` in INSTALLED_APPS."""

    name = "idempotent.adapters.django"
    label = "idempotent"
    verbose_name = "Idempotency keys"
