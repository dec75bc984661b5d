"""Batch ETL: raw geo-tagged text to numbered messages, their vocabulary and rejected rows.

The only package that imports pyspark; from the project it imports `matching` alone. Start with `spark_etl.job`, which
runs the steps, then `spark_etl.sources`, `spark_etl.finding` and `spark_etl.ingest`, the first of them.
"""
