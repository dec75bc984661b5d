"""A clock that a test moves."""


class FakeClock:
    """Time that stands still but for `advance` and, if wanted, `step_s` at each look."""

    def __init__(self, start_s: float = 1_000_000_000.0, step_s: float = 0.0):
        self._now_s = start_s
        self._step_s = step_s

    def now(self) -> float:
        """Seconds since the epoch."""
        now_s = self._now_s
        self._now_s += self._step_s
        return now_s

    def advance(self, seconds: float) -> None:
        """Let time pass; negative values set the clock back."""
        self._now_s += seconds
