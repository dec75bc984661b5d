"""Third step: count the terms of the kept messages."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def term_statistics(cleaned: DataFrame, repeated: Sequence[DataFrame], kept: int) -> DataFrame:
    """`term`, `document_frequency`, `collection_count` and `idf` of every term of the kept messages.

    Parameters
    ----------
    cleaned : DataFrame
        Of `clean.CLEAN_SCHEMA`; `terms` are distinct within a message.
    repeated : sequence of DataFrame
        `row_id` of the messages that are not kept.
    kept : int
        N in idf = ln(1 + N / document frequency).
    """
    messages = cleaned.where(F.col("reason").isNull()).select("row_id", "terms", "counts")
    for rows in repeated:
        messages = messages.join(rows.select("row_id"), "row_id", "left_anti")
    pairs = messages.select(F.explode(F.arrays_zip("terms", "counts")).alias("pair"))
    totals = pairs.groupBy(F.col("pair.terms").alias("term")).agg(
        F.count("*").alias("document_frequency"), F.sum("pair.counts").alias("collection_count")
    )
    return totals.withColumn("idf", F.log(1 + F.lit(float(kept)) / F.col("document_frequency")))


def split_stop_terms(statistics: DataFrame, kept: int, stop_share: float) -> tuple[DataFrame, list[str]]:
    """Remove the terms that are in more than `stop_share` of the messages.

    Only these are sent to the driver, at most (mean terms of a message) / `stop_share`.
    """
    if stop_share >= 1:
        return statistics, []
    stopped = F.col("document_frequency") > F.lit(stop_share * kept)
    names = [row[0] for row in statistics.where(stopped).select("term").collect()]
    return statistics.where(~stopped), sorted(names)
