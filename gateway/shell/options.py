"""Options of commands made of their definitions: fields of settings, parameters of functions, the kinds.

Importing the definitions takes up to a second, so it is done for the command that runs, and not when the command line
starts.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import OptionInfo

from gateway.shell.exit_codes import ENDING
from gateway.shell.per_kind import worded

if TYPE_CHECKING:
    from pydantic import BaseModel

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML settings (skyray.toml here, if it is there).")]

MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65_535,
        help="Port of 127.0.0.1 at which Prometheus finds figures while it runs; 0: any that is free.",
        rich_help_panel="Output",
    ),
]

MetricsTargets = Annotated[
    Path | None,
    typer.Option(
        help="With --metrics-port: folder for a file that lists the port, for Prometheus (file_sd_configs).",
        rich_help_panel="Output",
    ),
]

#: Where options stand that belong to no group, in commands that have groups.
OTHER = "Other"
#: Choices longer than this are listed beside the option, not between its name and its help.
LONGEST_CHOICES = 16


def example(line: str) -> str:
    """The text under a command's help."""
    return f"Example: {line}\n\n{ENDING}"


class Late(OptionInfo):
    """Placeholder in a command's signature for options that are made when the command runs.

    The command gets a dict of the given ones by name; defaults stay with the definitions.
    """

    def __init__(self, options: Callable[[], Iterable[Parameter]]):
        super().__init__(default=...)
        self.options = options


class Command(TyperCommand):
    """A command with options defined elsewhere (`Late`), and words in braces (`gateway.shell.per_kind`)."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        # a paragraph is as wide as the screen, and not as the source
        self.help = self.help and re.sub(r"(?<=\S)\n(?=\S)", " ", self.help)

    _complete: list[Any] | None = None
    #: Name of an option that was made -> the parameter that stands for it.
    _stands_for: dict[str, str]

    def get_params(self, ctx: Any) -> list[Any]:
        """The options; the same objects at every call."""
        if self._complete is None:
            complete, self._stands_for = [], {}
            for param in super().get_params(ctx):
                late = param.type_descriptor.parameter_info  # type: ignore[attr-defined]
                if isinstance(late, Late):
                    made = _made(late.options())
                    self._stands_for |= dict.fromkeys((option.name for option in made), param.name)
                else:
                    made = [param]
                complete += made
            self._complete = _in_groups(_with_flags(complete))
        return self._complete

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page. The words in braces list every engine, so they are filled in here, not for each run."""
        self._complete = worded(self.get_params(ctx))
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """What may follow, with the help of each option."""
        self._complete = worded(self.get_params(ctx))
        return super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: Any) -> Any:
        given: dict[str, dict[str, Any]] = {name: {} for name in self._stands_for.values()}
        for name, stand_in in self._stands_for.items():
            value, source = ctx.params.pop(name), ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                given[stand_in][name] = value
        ctx.params |= given
        return super().invoke(ctx)


class Group(TyperGroup):
    """A command that only groups others."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_flags(super().get_params(ctx))


def _with_flags(params: list[Any]) -> list[Any]:
    """The same parameters; a flag is shown without a type, since it takes no value."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.display_type_rich = lambda ctx: None
    return params


def _in_groups(params: list[Any]) -> list[Any]:
    """The same parameters, those of a group next to each other; where there are groups, the help shows them so."""
    groups = dict.fromkeys(param.rich_help_panel for param in params if param.rich_help_panel)
    if not groups:
        return params
    for param in params:
        if isinstance(param, TyperOption):
            param.rich_help_panel = param.rich_help_panel or OTHER
    order = {name: place for place, name in enumerate([None, *groups, OTHER])}
    return sorted(params, key=lambda param: order[param.rich_help_panel])


Groups = Mapping[str, tuple[str, ...]]


def _group_of(name: str, groups: Groups) -> str | None:
    return next((group for group, names in groups.items() if name in names), None)


def of_model(model: "type[BaseModel]", groups: Groups, **more: str) -> Iterator[Parameter]:
    """An option for each field; none is required, since there are other places to set it.

    Parameters
    ----------
    model : type of pydantic.BaseModel
    groups : mapping of str to names of fields
        Headings of the help, in order, and what stands below them.
    **more
        What the help of a field says besides its description.
    """
    order = [name for names in groups.values() for name in names]
    for name in sorted(model.model_fields, key=lambda name: order.index(name) if name in order else len(order)):
        field = model.model_fields[name]
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        meaning = f"{field.description}{more.get(name, '')}"
        yield _option(name, field.annotation, default, meaning, name, _group_of(name, groups))


def of_signature(
    source: Callable[..., Any], called: Callable[[str], str] = str, groups: Groups | None = None
) -> Iterator[Parameter]:
    """An option for each parameter of a function or dataclass that is annotated with words or with one of Typer's.

    Parameters
    ----------
    source : callable
    called : callable
        Name of a parameter -> name of its option.
    groups : mapping of str to names of parameters
        Headings of the help, in order, and what stands below them.
    """
    all_of_them = [*signature(source, eval_str=True).parameters.values()]
    if groups:
        place = {name: at for at, names in enumerate(groups.values()) for name in names}
        all_of_them.sort(key=lambda each: place.get(each.name, len(place)))
    for each in all_of_them:
        if get_origin(each.annotation) is Annotated:
            plain, said = get_args(each.annotation)
            default = ... if each.default is each.empty else each.default
            if isinstance(said, str):
                group = _group_of(each.name, groups or {})
                yield _option(each.name, plain, default, said, called(each.name), group)
            else:
                yield each.replace(kind=Parameter.KEYWORD_ONLY)


def _option(name: str, annotation: Any, default: Any, meaning: str, called: str, group: str | None = None) -> Parameter:
    """A parameter as Typer reads it.

    Choices are shown, but not left to Typer: what does not fit is refused by the settings, in the same words wherever a
    value comes from.
    """
    plain, shown = _plain(annotation)
    text = f"{meaning[0].upper()}{meaning[1:]}."
    if shown is not None and len(shown) > LONGEST_CHOICES:
        text, shown = f"{text} One of {', '.join(shown[1:-1].split('|'))}.", "<NAME>"
    default = list(default) if isinstance(default, dict | tuple) else default
    option = typer.Option(default, f"--{called.replace('_', '-')}", help=text, metavar=shown, rich_help_panel=group)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=plain)


def _plain(annotation: Any) -> tuple[Any, str | None]:
    """What Typer reads for a field, and how the help shows it where that is not Typer's own way."""
    origin, parts = get_origin(annotation), [part for part in get_args(annotation) if part is not NoneType]
    if origin is Literal:
        return str, f"<{'|'.join(parts)}>"
    if origin in (UnionType, Union):
        return _plain(parts[0])
    if origin is tuple:
        each = get_args(parts[0])[0] if get_origin(parts[0]) is Annotated else parts[0]
        return GenericAlias(list, (each,)), f"<{each.__name__.lower()}>"
    if origin is dict:  # of kinds
        return list[str], "<KIND=NAME>"
    return annotation, None


def _made(parameters: Iterable[Parameter]) -> list[Any]:
    """Typer's own reading of parameters."""

    def takes() -> None: ...

    takes.__signature__ = Signature(list(parameters))  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(takes)
    return typer.main.get_command(app).params
