"""Suggestions for unknown names."""

import difflib
from collections.abc import Iterable

from matching.errors import ConfigError


def refuse_unknown(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for the first of the given options that is not among the known, with the nearest one."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
            raise ConfigError(f"{where}: no option {name!r}; {hint}")
