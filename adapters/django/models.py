"""The tables of keys as models, so that Django's `flush` and TransactionTestCase empty them. Nothing else uses them.

Text has other collations on MySQL, and bytes a length, than these fields say: the migration makes the tables.
"""

from __future__ import annotations

from django.db import models


class Key(models.Model):  # type: ignore[misc] # Django ships no types
    """One row for each key."""

    key_hash = models.BinaryField(primary_key=True)
    k = models.CharField(max_length=255)
    status = models.SmallIntegerField()
    owner = models.BinaryField()
    fence = models.BigIntegerField()
    lease_until = models.BigIntegerField(null=True)
    fingerprint = models.BinaryField(null=True)
    result = models.BinaryField(null=True)
    update_at = models.BigIntegerField()
    expires_at = models.BigIntegerField()

    class Meta:
        """The default table of checkers."""

        db_table = "deduplicate_tbl"
        default_permissions = ()

    def __str__(self) -> str:
        """Its readable text."""
        return str(self.k)


class Failure(models.Model):  # type: ignore[misc] # Django ships no types
    """Attempts and last error of a key that failed."""

    key_hash = models.BinaryField(primary_key=True)
    k = models.CharField(max_length=255)
    attempts = models.IntegerField()
    last_error = models.CharField(max_length=1000)
    update_at = models.BigIntegerField()
    expires_at = models.BigIntegerField()

    class Meta:
        """The table beside it."""

        db_table = "deduplicate_tbl_failures"
        default_permissions = ()

    def __str__(self) -> str:
        """The readable text of its key."""
        return str(self.k)
