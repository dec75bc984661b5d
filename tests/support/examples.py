"""How many examples a commit waits for, where a search makes more of them."""

from hypothesis import settings


def examples(commit: int, search: int) -> int:
    """The first, or with `--hypothesis-profile searching` the second."""
    return commit if settings.default.derandomize else search
