"""The demo's flights through a Spark pipeline whose driver is killed. Importing this imports no pyspark."""
