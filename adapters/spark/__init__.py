"""Spark: the effect of every row happens once, however often Spark evaluates it. Importing this imports no pyspark."""
