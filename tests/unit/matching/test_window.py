"""Durations of time windows."""

import pytest

from matching.errors import ConfigError
from matching.window import Window


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("time:90", 90), ("time:90s", 90), ("time:1.5m", 90), ("time:1h", 3_600), ("time:2d", 172_800)],
)
def test_window_durations_have_units(text, seconds):
    assert Window.parse(text) == Window("time", seconds * 1_000_000)


@pytest.mark.parametrize("text", ["time:1w", "time:h", "time:", "time:-1h", "time:infh", "time:1 hour", "count:1h"])
def test_window_what_is_no_duration_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match="time:1h"):
        Window.parse(text)
