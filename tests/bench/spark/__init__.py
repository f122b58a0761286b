"""What effects in Spark cost: `python -m tests.bench.spark`."""
