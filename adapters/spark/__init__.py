"""Spark: every row has its effect once, however often Spark evaluates it. Importing this imports no pyspark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from idempotent.errors import MissingExtraError

if TYPE_CHECKING:
    from idempotent.adapters.spark.api import (
        idempotent_batches,
        idempotent_foreach,
        idempotent_partitions,
        idempotent_udf,
    )
    from idempotent.adapters.spark.bulk import bulk_dedup
    from idempotent.adapters.spark.keys import key_hash
    from idempotent.adapters.spark.ledger import OnConflict, StoreConfig, abort_run
    from idempotent.adapters.spark.publication import Publication
    from idempotent.adapters.spark.run import IdempotentRun
    from idempotent.adapters.spark.streaming import foreach_batch

__all__ = [
    "IdempotentRun",
    "OnConflict",
    "Publication",
    "StoreConfig",
    "abort_run",
    "bulk_dedup",
    "foreach_batch",
    "idempotent_batches",
    "idempotent_foreach",
    "idempotent_partitions",
    "idempotent_udf",
    "key_hash",
]

# pyspark takes long to import, and users of the ledger do not need it.
_MODULES: Final = {
    "IdempotentRun": "run",
    "OnConflict": "ledger",
    "Publication": "publication",
    "StoreConfig": "ledger",
    "abort_run": "ledger",
    "bulk_dedup": "bulk",
    "foreach_batch": "streaming",
    "idempotent_batches": "api",
    "idempotent_foreach": "api",
    "idempotent_partitions": "api",
    "idempotent_udf": "api",
    "key_hash": "keys",
}

if not TYPE_CHECKING:  # else type checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            try:
                return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
            except ModuleNotFoundError as error:
                if error.name in ("pandas", "pyarrow", "pyspark"):
                    raise MissingExtraError(error.name, "spark") from error
                raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
