"""What a signature is asked to be, and the claims it is made of."""

import numpy as np
import pytest

from distribution.signatures.claims import Claims, claims_of
from distribution.signatures.signature import MODES, spec_of
from matching.errors import ConfigError
from tests.support.signature_tables import SMALL, SPACE, random_subscriptions


@pytest.mark.parametrize(
    "wrong",
    [{"side": 100}, {"side": 8, "levels": 4}, {"levels": -1}, {"spatial_filter": "bloom"}, {"text_filter": "none"}],
)
def test_spec_impossible_values_are_refused(wrong):
    with pytest.raises(ConfigError, match="signature"):
        SMALL._replace(**wrong).check()


def test_spec_of_modes():
    assert spec_of("off", SPACE) is None
    assert [spec_of(mode, SPACE).text for mode in ("spatial", "spatial+text")] == [False, True]
    halves = {mode: (spec.spatial_filter, spec.text) for mode in MODES[1:] if (spec := spec_of(mode, SPACE))}
    assert halves["cuckoo"] == ("cuckoo", False) and halves["cuckoo+text"] == ("cuckoo", True)
    assert {cells for mode, (cells, _) in halves.items() if not mode.startswith("cuckoo")} == {"bitmap"}


def test_claims_take_keeps_rows_together():
    claims = claims_of(random_subscriptions(8, 40))
    part = claims.take(np.array([3, 1]))
    assert isinstance(part, Claims) and part.rows == 2
    first = claims.terms[claims.term_offsets[3] : claims.term_offsets[4]]
    assert np.array_equal(part.terms[: part.term_offsets[1]], first)
