"""Groups of commands, and how flags are shown."""

from typing import Any

from typer.core import TyperGroup, TyperOption


class Group(TyperGroup):
    """A command that only groups others."""

    def get_params(self, ctx: Any) -> list[Any]:
        return with_flags(super().get_params(ctx))


def with_flags(params: list[Any]) -> list[Any]:
    """The same parameters; a flag is shown without a type, since it takes no value."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.display_type_rich = lambda ctx: None
    return params
