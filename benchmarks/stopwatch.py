"""Where the time of a top-k run goes: index, buffers, updates, refills, window.

The parts of a `LocalTopk` get a clock around their methods, on the very objects of a benchmark and nowhere else; a few
calls a batch, so the clocks cost nothing that shows. Read on in `benchmarks.topk`.
"""

from time import perf_counter
from typing import Any

from matching.topk.local import LocalTopk

#: Part to (attribute path, methods). What runs inside a refill counts as refill, whatever it calls.
_CLOCKED = (
    ("index", "stream.index", ("match", "set_thresholds", "withdraw")),
    ("buffers", "stream.buffers", ("close", "offer", "expire", "due", "held", "raise_threshold", "clear")),
    ("updates", "stream", ("_tell",)),
    ("refills", "stream", ("_pend", "install")),
    ("refills", "window_index", ("query",)),
    ("window", "window_index", ("store",)),
)


class Stopwatch:
    """Wall-clock seconds by part of one `LocalTopk`, from its building or the last `reset` on.

    A part that runs inside another stops the other's clock, save that a refill keeps all that it calls.
    """

    def __init__(self, local: LocalTopk):
        self.seconds: dict[str, float] = {}
        self._running: list[str] = []
        self._since = 0.0
        for name, path, methods in _CLOCKED:
            owner: Any = local
            for attribute in path.split("."):
                owner = getattr(owner, attribute)
            for method in methods:
                self._clock(owner, method, name)
        self.reset()

    def reset(self) -> None:
        """All clocks to zero."""
        self.seconds = dict.fromkeys((name for name, _, _ in _CLOCKED), 0.0)

    def split(self, elapsed_s: float) -> dict[str, float]:
        """Seconds of each part, and `other` for what is left of `elapsed_s`."""
        return self.seconds | {"other": elapsed_s - sum(self.seconds.values())}

    def _clock(self, owner: Any, method: str, name: str) -> None:
        call = getattr(owner, method)

        def clocked(*args: Any, **kwargs: Any) -> Any:
            if self._running and self._running[-1] == "refills":
                return call(*args, **kwargs)
            self._switch()
            self._running.append(name)
            try:
                return call(*args, **kwargs)
            finally:
                self._switch()
                self._running.pop()

        setattr(owner, method, clocked)

    def _switch(self) -> None:
        """Book what has passed since the last switch to the part that ran."""
        now = perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now
