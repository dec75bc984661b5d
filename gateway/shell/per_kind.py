"""Kinds in the options of commands: words in help texts, and a setting for each kind.

The table of kinds takes most of a second to import, so it is read for a help page, and not when the command line
starts.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

import typer

from matching.kind_table import ByName, Kinds


def each_kind(kinds: Kinds) -> Iterator[Parameter]:
    """A setting `count.KIND` for each kind that runs: how many subscriptions a load test makes of it."""
    for kind in kinds.run:
        option = typer.Option(kind.recipe.load, min=0, help=f"{kind.name.capitalize()} subscriptions.")
        yield Parameter(kind.name, Parameter.KEYWORD_ONLY, default=option, annotation=int)


def worded(params: Sequence[Any], kinds: Kinds | None = None) -> list[Any]:
    """The parameters of a command, with the words in braces in their help texts filled in (see `words_of`)."""
    if not any("{" in (param.help or "") for param in params):
        return list(params)
    if kinds is None:
        from matching.kinds import KINDS

        kinds = KINDS
    words, found = words_of(kinds), []
    for param in params:
        made = copy.copy(param)
        made.help = (param.help or "").format(**words)
        found.append(made)
    return found


def words_of(kinds: Kinds) -> dict[str, str]:
    """What may stand in braces: `kinds`, `running`, `match`, `engines`, `windows`, `fewer`."""
    idle = [kind.name for kind in kinds if not kind.runs]
    running = _listed([kind.name for kind in kinds.run], "or")
    fewer = [f"{kind.recipe.share} times fewer of {kind.name}" for kind in kinds.run if kind.recipe.share > 1]
    return {
        "kinds": running + (f"; {_listed(idle, 'and')}, which do not run yet" if idle else ""),
        "running": running,
        "match": _listed([kind.name for kind in kinds if "match" in kind.fields], "or"),
        "engines": "; ".join(f"{kind.name}: {_own(kind.engines)}" for kind in kinds.run),
        "windows": "; ".join(f"{kind.name}: {_own(kind.windows)}" for kind in kinds.run if kind.windows),
        "fewer": "".join(f", {each}" for each in fewer),
    }


def _own(named: Mapping[str, Any]) -> str:
    """Those that a user would choose: not the systems of papers and opponents, which go by name, too."""
    return ", ".join(named.own if isinstance(named, ByName) else named)


def _listed(names: Sequence[str], last: str) -> str:
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
