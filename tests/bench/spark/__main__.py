"""`python -m tests.bench.spark`: apart from what executors import, which must not be `__main__`."""

import typer

from tests.bench.spark.effects import main

if __name__ == "__main__":
    typer.run(main)
