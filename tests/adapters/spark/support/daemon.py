"""Spark's Python daemon, with what every worker imports: a worker that is forked from it starts at once."""

from importlib import import_module

from pyspark.daemon import manager

_MODULES = (
    "pandas",
    "pyarrow",
    "pyspark.sql.pandas.serializers",
    "idempotent.adapters.spark.ledger.redis",
    "idempotent.adapters.spark.ledger.sql",
    "idempotent.adapters.spark.api",
    "idempotent.adapters.spark.tasks.filters",
    "idempotent.adapters.spark.tasks.handlers",
    "idempotent.adapters.spark.api",
)

if __name__ == "__main__":
    for module in _MODULES:
        import_module(module)
    manager()
