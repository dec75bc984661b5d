"""Commands whose options follow the table of kinds.

The table takes most of a second to import, so it is read when such a command is asked for its options, and not when
the command line starts. Used by `gateway.cli`; read on in `matching.kinds`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperOption

from matching.kind_table import Kind, Kinds

#: Parameter that stands for one option `--KIND` for each kind that runs.
EACH_KIND = "each_kind"


class KindCommand(TyperCommand):
    """A command that knows the kinds.

    Words in braces in a help text are filled in from the table (see `words_of`). A parameter `each_kind` stands for an
    option of each kind that runs; the command gets the values that were given as a dict, by name.
    """

    _complete: list[Any] | None = None

    def get_params(self, ctx: Any) -> list[Any]:
        """The options as they are in force; the same objects whenever they are asked for."""
        if self._complete is None:
            from matching.kinds import KINDS

            self._complete = complete(super().get_params(ctx), KINDS)
        return self._complete

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        given = {name: value for name, value in ctx.params.items() if name.startswith(f"{EACH_KIND} ")}
        if given:
            for name in given:
                del ctx.params[name]
            told = {name.removeprefix(f"{EACH_KIND} "): value for name, value in given.items() if value is not None}
            ctx.params[EACH_KIND] = told
        return super().invoke(ctx)


def complete(params: Sequence[Any], kinds: Kinds) -> list[Any]:
    """The parameters of a command with all that the table of kinds says. O(kinds)."""
    words = words_of(kinds)
    found: list[Any] = []
    for param in params:
        if param.name == EACH_KIND:
            found += [_of_kind(param, kind) for kind in kinds.run]
        else:
            found.append(_worded(param, words))
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
        "engines": "; ".join(f"{kind.name}: {', '.join(kind.engines)}" for kind in kinds.run),
        "windows": "; ".join(f"{kind.name}: {', '.join(kind.windows)}" for kind in kinds.run if kind.windows),
        "fewer": "".join(f", {each}" for each in fewer),
    }


def _of_kind(option: TyperOption, kind: Kind) -> TyperOption:
    made = copy.copy(option)
    made.name, made.opts = f"{EACH_KIND} {kind.name}", [f"--{kind.name}"]
    return _worded(made, {"name": kind.name.capitalize(), "load": f"{kind.recipe.load:,}"})


def _worded(param: Any, words: Mapping[str, str]) -> Any:
    text = getattr(param, "help", None)
    if not text or "{" not in text:
        return param
    made = copy.copy(param)
    made.help = text.format(**words)
    return made


def _listed(names: Sequence[str], last: str) -> str:
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
