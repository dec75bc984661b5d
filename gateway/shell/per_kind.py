"""Kinds in the options of commands: words in help texts, and a setting for each kind."""

from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

import typer

from matching.kind_table import ByName, Kinds
from matching.kinds import KINDS


def each_kind(kinds: Kinds) -> Iterator[Parameter]:
    """A setting `count.KIND` for each kind that runs: how many subscriptions a load test makes of it."""
    for kind in kinds.run:
        option = typer.Option(kind.recipe.load, min=0, help=f"{kind.name.capitalize()} subscriptions.")
        yield Parameter(kind.name, Parameter.KEYWORD_ONLY, default=option, annotation=int)


def words_of(kinds: Kinds) -> dict[str, str]:
    """Parts of help texts: `kinds`, `running`, `match`, `engines`, `windows`, `fewer`."""
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


#: Parts of help texts, of the kinds that there are.
WORDS = words_of(KINDS)
