"""How many examples a commit waits for, or of what, where a search makes more of them."""

from typing import TypeVar

from hypothesis import settings

_T = TypeVar("_T")


def examples(commit: _T, search: _T) -> _T:
    """The first, or with `--hypothesis-profile searching` the second."""
    return commit if settings.default.derandomize else search
