"""What the soak says of its samples."""

import pytest

from benchmarks.soak import Sample, figures, flatness

MIB = 2**20
FLAT = {"rss": True, "descriptors": True, "threads": True, "checkpoints": True}


def samples(**growth):
    """Half an hour, every ten seconds; so much more of a column a minute."""
    found = []
    for place in range(180):
        one = Sample(10.0 * place, 300 * MIB, 40, 12, 100 * place, 50 * place, 5 * MIB, 10 * place)
        found.append(one._replace(**{name: int(getattr(one, name) + by * place / 6) for name, by in growth.items()}))
    return found


@pytest.mark.parametrize(
    ("growth", "grown"),
    [
        ({}, None),
        ({"rss_bytes": 0.5 * MIB}, None),
        ({"rss_bytes": 1.5 * MIB}, "rss"),
        ({"descriptors": 1}, "descriptors"),
        ({"threads": 1}, "threads"),
        ({"checkpoint_bytes": 0.2 * MIB}, "checkpoints"),
    ],
)
def test_soak_names_what_has_grown(growth, grown):
    found = figures(samples(**growth))
    assert flatness(found, 1.0) == FLAT | ({grown: False} if grown else {})
    assert found["log_bytes_a_message"] == 10 and found["update_bytes_a_message"] == 5
    assert found["rss_mib_a_minute"] == pytest.approx(growth.get("rss_bytes", 0) / MIB, abs=0.01)
