"""Bounds on the messages of a cell by the place and the alpha of a subscription, for any text score.

For a message in cell c to reach a score S, its text must be worth at least S / (1 - alpha) - alpha / (1 - alpha) *
minD(q, c), the minimum conditional text score of Chen et al., CIQ (lemma 1), where minD is the spatial proximity of the
nearest point of c. The part that comes with the threshold is called `scaled`, as it is now its `worth`, and the part
that comes with the cell is the `reach`. Where alpha is 1, or so close to it that a division by 1 - alpha would cost
digits, only the place is tested: `worth` is S and `reach` the best score that any text could bring there.
"""

import numpy as np

from compiling.njit import njit, njit_inner
from matching.model import Float32, Float64, Int32
from papers.ciq.celled_lists import MOST_BUCKETS
from papers.ciq.quadtree import distance_to_box

#: Below this weight of the text, only the place is tested.
LEAST_TEXT = 1e-6
#: A reach is rounded to float32 upwards.
_UPWARDS = 1.0 + 1.2e-7
#: Upper bound of a text relevance: stored unit vectors may be slightly longer than 1.
_BEST_TEXT = 1.0 + 1e-6


@njit(cache=True, nogil=True)
def is_spatial(alpha):
    """Whether only place is tested."""
    return 1.0 - alpha < LEAST_TEXT


@njit(cache=True, nogil=True)
def reach_of(alpha, distance, max_distance):
    """The part of the bound that comes with a cell whose nearest point is at this distance, as float32."""
    proximity = 1.0 - distance / max_distance
    if is_spatial(alpha):
        return np.float32((alpha * proximity + (1.0 - alpha) * _BEST_TEXT) * _UPWARDS)
    # its sign follows that of the proximity, which is negative beyond the largest distance
    reach = alpha * proximity / (1.0 - alpha)
    return np.float32(reach * _UPWARDS if reach > 0.0 else reach / _UPWARDS)


@njit_inner
def reach_in_box(c, slot, west, south, side, max_distance):
    """`reach_of` a subscription and a square."""
    return reach_of(c.alpha[slot], distance_to_box(c.x[slot], c.y[slot], west, south, side), max_distance)


@njit(cache=True, nogil=True)
def bucket_of(reach, alpha, buckets, width):
    """The bucket of an association (definition 6): equal intervals of the reach, of which the last has no upper end.

    Bucket `buckets` is that of the subscriptions that are tested by place alone.
    """
    if is_spatial(alpha):
        return buckets
    return int(max(0.0, min(np.float64(reach) / width, buckets - 1.0)))


@njit(cache=True, nogil=True)
def place_of(cell, bucket):
    """Cell and bucket in one number, as in `Celled.where`."""
    return np.int32(cell * MOST_BUCKETS + bucket)


def order_of(worth: Float64, reach: Float32) -> Int32:
    """Where associations come in a walk through both parts of their bounds that keeps those alike together."""
    first, second = _share(np.maximum(reach, 0.0)), _share(np.clip(worth, 0.0, 1e9))
    mixed = np.zeros(first.shape[0], np.int32)
    # the bits of two numbers of ten bits by turns: neighbours in both are neighbours in the order of it, mostly
    for bit in range(10):
        mixed |= ((first >> bit & 1) << (2 * bit + 1)) | ((second >> bit & 1) << (2 * bit))
    return mixed


def _share(values: np.ndarray) -> Int32:
    """0 to infinity as steps from 0 to 1,023."""
    return np.minimum(1023, 1024 * (values / (1.0 + values))).astype(np.int32)
