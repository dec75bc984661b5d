"""Third step: count the terms of the kept messages and give them their ids. Next is `spark_etl.vectorise`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_etl.clean import write_numbered


def term_statistics(messages: DataFrame, kept: int) -> DataFrame:
    """`term`, `document_frequency`, `collection_count` and `idf` of every term of the kept messages.

    `messages` has `terms` (array<string>, distinct) and `counts` (array<int>); `kept` is N in idf = ln(1 + N / df).
    """
    pairs = messages.select(F.explode(F.arrays_zip("terms", "counts")).alias("pair"))
    totals = pairs.groupBy(F.col("pair.terms").alias("term")).agg(
        F.count("*").alias("document_frequency"), F.sum("pair.counts").alias("collection_count")
    )
    return totals.withColumn("idf", F.log(1 + F.lit(float(kept)) / F.col("document_frequency")))


def split_stop_terms(statistics: DataFrame, kept: int, stop_share: float) -> tuple[DataFrame, list[str]]:
    """Take out the terms that are in more than `stop_share` of the messages.

    Only these come to the driver; there can be no more of them than (mean terms of a message) / `stop_share`.
    """
    if stop_share >= 1:
        return statistics, []
    stopped = F.col("document_frequency") > F.lit(stop_share * kept)
    names = [row[0] for row in statistics.where(stopped).select("term").collect()]
    return statistics.where(~stopped), sorted(names)


def number_terms(statistics: DataFrame, path: str) -> DataFrame:
    """Add `term_id` (int), dense from 0 by ascending document frequency, then by the bytes of the term."""
    ordered = statistics.orderBy("document_frequency", "term")
    return write_numbered(ordered, "term_id", path).withColumn("term_id", F.col("term_id").cast("int"))
