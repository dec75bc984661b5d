"""Fourth step: add up the counts of terms."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from matching.vocabulary import LATE_DOCUMENT_FREQUENCY


def term_statistics(counts: DataFrame, kept: int) -> DataFrame:
    """The columns of `schemas.VOCABULARY_SCHEMA` but the id, in one partition.

    Parameters
    ----------
    counts : DataFrame
        Of `ordered.TERM_COUNTS`; a term may be in several rows.
    kept : int
        N in idf = ln(1 + N / document frequency); a term for matching alone has that of a word that is admitted late.
    """
    frequency, collected = F.sum("document_frequency"), F.sum("collection_count")
    totals = counts.groupBy("term").agg(frequency.alias("document_frequency"), collected.alias("collection_count"))
    least = F.greatest("document_frequency", F.lit(LATE_DOCUMENT_FREQUENCY))
    return totals.withColumn("idf", F.log(1 + F.lit(float(kept)) / least)).repartition(1)
