"""Parameters of the scores of `decay`: the half-life, and the share of each term in the collection.

A score falls to half in `half_life_s`. Instead of lowering all scores as time passes, the key of a message grows with
its time: the log of its relevance plus its time times ln D is constant, and ranks messages as the decaying scores do at
any time (spec 6).
"""

import math
from typing import NamedTuple

import numpy as np

from matching.errors import ConfigError
from matching.model import Float64, Int64

#: Default epoch, at which age is 0: the beginning of 2020. Any will do; a near one keeps more digits of the keys.
EPOCH_US = 1_577_836_800_000_000
#: Defaults: seconds in which a score halves; weight of the collection in text relevance.
HALF_LIFE_S, SMOOTHING = 86_400.0, 0.2
#: A half-life below the unit of event times is meaningless, and one far below overflows; above 32,000 years scores do
#: not decay at all.
SHORTEST_HALF_LIFE_S, LONGEST_HALF_LIFE_S = 1e-6, 1e12


class DecayParameters(NamedTuple):
    """Settings of a run and counts of its collection; kernels take it as it is.

    log_base_per_s : float             ln D: by how much ln(score) falls in a second
    smoothing : float                  lambda of Jelinek and Mercer, 0..1: weight of the collection in a probability
    collection_share : float64[terms]  by term id, its count in the collection over the count of all terms
    epoch_us : int                     event time that counts as nothing; keeps digits of the keys
    """

    log_base_per_s: float
    smoothing: float
    collection_share: Float64
    epoch_us: int

    @property
    def most_of_the_missing(self) -> float:
        """Largest probability of a keyword in a message that lacks it: smoothing only. O(terms)."""
        return self.smoothing * float(self.collection_share.max(initial=0.0))

    @classmethod
    def of(
        cls,
        half_life_s: float,
        smoothing: float,
        collection_count: Int64,
        total_tokens: int,
        epoch_us: int = EPOCH_US,
    ) -> "DecayParameters":
        """Compute the parameters from a half-life and a vocabulary.

        Parameters
        ----------
        half_life_s : float               seconds in which a score falls to half, from `SHORTEST_HALF_LIFE_S` to
                                          `LONGEST_HALF_LIFE_S`
        smoothing : float                 0..1
        collection_count : int64[terms]   by term id
        total_tokens : int                sum of all counts
        epoch_us : int                    microseconds

        Raises
        ------
        ConfigError
            For a half-life outside its range, or a smoothing outside 0..1.
        """
        if not SHORTEST_HALF_LIFE_S <= half_life_s <= LONGEST_HALF_LIFE_S:
            raise ConfigError(
                f"half-life {half_life_s}: give seconds between {SHORTEST_HALF_LIFE_S:g} and {LONGEST_HALF_LIFE_S:g}"
            )
        if not 0.0 <= smoothing <= 1.0:
            raise ConfigError(f"smoothing {smoothing}: give a number between 0 and 1")
        frequency = np.asarray(collection_count, np.float64) / max(1, total_tokens)
        return cls(math.log(2.0) / half_life_s, float(smoothing), frequency, int(epoch_us))
