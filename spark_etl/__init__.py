"""Upstream work in batch: raw geo-tagged text in, numbered messages, their vocabulary and the rejected rows out.

The only package that imports pyspark; from the project it takes nothing but `matching`. Start with `spark_etl.job`,
which runs the steps in order, then `spark_etl.sources`, `spark_etl.finding` and `spark_etl.ingest`, the first of them.
"""
