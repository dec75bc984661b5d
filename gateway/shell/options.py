"""Options of commands made of their definitions: fields of settings, and parameters of functions."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperOption
from typer.exceptions import TyperException
from typer.models import OptionInfo

from gateway.shell.exit_codes import ENDING
from gateway.shell.groups import with_flags
from gateway.shell.settings import OWNED, PREFIX, SECTIONS, Setting, read_settings, refuse_unknown_settings
from matching.errors import ConfigError
from topology.given import COMMAND_LINE, Given

if TYPE_CHECKING:
    from pydantic import BaseModel

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65_535,
        help="Port of 127.0.0.1 at which Prometheus finds figures while it runs; 0: any that is free.",
    ),
]
MetricsTargets = Annotated[
    Path | None,
    typer.Option(
        "--targets", help="With metrics.port: folder for a file that lists the port, for Prometheus (file_sd_configs)."
    ),
]
#: Options that are no settings.
_FREE = ("json", "help", "config", "sets")
#: Option that takes NAME=VALUE -> section of these settings.
_OF_SECTIONS = {"column": "columns", "count": "count"}
#: Options that went, and are no setting either -> what to write.
_GONE = {"--run": "write skyray show FOLDER --page"}


def _sources(
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; skyray.toml of this folder, if it is there.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="Any setting, as a settings file has it; may be repeated. `skyray config show` lists all.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help="Column of messages by its role, such as text, lat, lon, time or id, where its name does not tell; "
            "a.b.c is a path into objects, no name for no column; may be repeated.",
        ),
    ] = None,
    count: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=N", help="How many subscriptions there are of a kind: {names}; may be repeated."),
    ] = None,
) -> None:
    """Options of every command: where its settings come from."""


#: Where options stand that belong to no group, in commands that have groups.
OTHER = "Other"
#: Choices longer than this are listed beside the option, not between its name and its help.
LONGEST_CHOICES = 16


def example(line: str) -> str:
    """The text under a command's help."""
    return f"Example: {line}\n\n{ENDING}"


class Defined(OptionInfo):
    """Placeholder in a command's signature for options that are defined elsewhere.

    The command gets a `Given` of the given ones by name; defaults stay with the definitions. `section` is that of
    them all, by default as `shares` says.
    """

    def __init__(self, options: Iterable[Parameter], section: str | None = None):
        super().__init__(default=...)
        self.options, self.section = tuple(options), section


def shares(*sections: str, shown: Collection[str] | None = None, quiet: Collection[str] = ()) -> Callable[[Any], Any]:
    """Says of a command's function where its settings stand, and which are options.

    Parameters
    ----------
    *sections : str
        Of `gateway.shell.settings.SECTIONS`, whose settings the command reads; others are in a section of its own name.
    shown : collection of str, optional
        Names of the settings that are options, all by default; the others are settings only.
    quiet : collection of str
        Names of settings that are options, and are not on the help page.
    """

    def marked(function: Any) -> Any:
        function.shares = sections, shown, quiet
        return function

    return marked


class Command(TyperCommand):
    """A command with options defined elsewhere (`Defined`).

    Every option is a setting, too, by section and name; a hidden one is nothing else.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        # a paragraph is as wide as the screen, and not as the source
        self.help = self.help and re.sub(r"(?<=\S)\n(?=\S)", " ", self.help)

    _complete: list[Any] | None = None
    #: Name of an option that was made -> the parameter that stands for it.
    _stands_for: dict[str, str]
    #: Section and name of a setting -> its option.
    settings: dict[tuple[str, str], Any]
    #: Name of an option whose value is no option of the command line -> where it was set.
    _origins: dict[str, str]

    def get_params(self, ctx: Any) -> list[Any]:
        """The options; the same objects at every call."""
        if self._complete is None:
            complete, self._stands_for, self.settings, self._origins = [], {}, {}, {}
            for param in super().get_params(ctx):
                defined = param.type_descriptor.parameter_info  # type: ignore[attr-defined]
                made = [param]
                if isinstance(defined, Defined):
                    made = _made(defined.options)
                    self._stands_for |= dict.fromkeys((option.name for option in made), param.name)
                for option in made:
                    if isinstance(option, TyperOption) and option.name not in _FREE:
                        self._place(option, getattr(defined, "section", None))
                complete += made
            sections = {section for section, _ in self.settings}
            for option in _made(signature(_sources).parameters.values()):
                section = _OF_SECTIONS.get(option.name, option.name)
                if section in (*sections, *_FREE):
                    option.expose_value = False
                    option.help = option.help.format(
                        names=", ".join(name for one, name in self.settings if one == section)
                    )
                    complete.append(option)
            self._complete = _in_groups(with_flags(complete))
        return self._complete

    def _place(self, option: Any, section: str | None) -> None:
        """Make an option a setting."""
        among, shown, quiet = getattr(self.callback, "shares", ((), None, ()))
        name = option.opts[0].lstrip("-").replace("-", "_")
        section = section or next((one for one in among if name in SECTIONS[one]), None)
        section = section or self.callback.__module__.rpartition(".")[2]
        self.settings[section, name] = option
        if among:
            option.rich_help_panel = section.capitalize()
        option.hidden = shown is not None and name not in shown
        if option.hidden and name not in quiet:
            option.opts, option.secondary_opts = [f"--set {section}.{name}"], []

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line over environment and file."""
        self.get_params(ctx)
        try:
            typed, _, _ = self.make_parser(ctx).parse_args([*args])
        except TyperException as error:
            name = getattr(error, "option_name", "")
            if not any(name in option.opts for option in self.get_params(ctx)) and (instead := self._instead_of(name)):
                raise ConfigError(f"{name}: is no option; {instead}") from None
            raise
        if not (typed.get("help") or ctx.resilient_parsing):
            self._take_settings(ctx, typed)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if (origin := self._origins.get(getattr(error.param, "name", ""), COMMAND_LINE)) != COMMAND_LINE:
                error.message = f"{error.message.rstrip('.')} (from {origin})."
            raise

    def places(self, _ctx: Any) -> Mapping[tuple[str, str], Any]:
        """Section and name of each setting that this command reads -> its option."""
        return self.settings

    def _take_settings(self, ctx: Any, typed: Mapping[str, Any]) -> None:
        sets = [*typed.get("sets", ())]
        for option, section in _OF_SECTIONS.items():
            if any(section == one for one, _ in self.settings):
                sets += [f"{section}.{one}" for one in typed.get(option, ())]
        given = read_settings(Path(typed["config"]) if typed.get("config") else None, sets)
        places = self.places(ctx)
        commands = getattr(ctx.find_root().command, "commands", ())
        refuse_unknown_settings(given, places.keys(), {*OWNED, *(name.replace("-", "_") for name in commands)})
        ctx.meta["skyray.settings"], ctx.default_map = given, {}
        for place, setting in given.items():
            option = places.get(place)
            if option is None:
                continue
            if option.name in typed and setting.origin == COMMAND_LINE:
                raise ConfigError(f"{option.opts[0]}: is given by --set {'.'.join(place)}, too; leave one of them out")
            if option.name not in typed:
                ctx.default_map[option.name] = as_typed(option, place, setting)
                self._origins[option.name] = setting.origin

    def _instead_of(self, typed: str) -> str | None:
        """What to write in the place of an option that the command line does not have."""
        name = typed.lstrip("-").replace("-", "_")
        for (section, own), option in self.settings.items():
            if name in (own, option.name):
                sugar = next((option for option, of in _OF_SECTIONS.items() if of == section), None)
                spelled = option.opts[0] if not option.hidden else f"--{sugar} {own}" if sugar else option.opts[0]
                return f"write {spelled}=VALUE, or {own} = VALUE in [{section}] of skyray.toml"
        return _GONE.get(typed)

    def invoke(self, ctx: Any) -> Any:
        given = {name: Given() for name in self._stands_for.values()}
        spelled = {option.name: option.opts[0] for option in self.settings.values()}
        for name, stand_in in self._stands_for.items():
            value, source = ctx.params.pop(name), ctx.get_parameter_source(name)
            if source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP"):
                given[stand_in][name] = value
                given[stand_in].spelled[name] = spelled[name]
                given[stand_in].origins[name] = self._origins.get(name, COMMAND_LINE)
        ctx.params |= given
        return super().invoke(ctx)


def as_typed(option: Any, place: tuple[str, str], setting: Setting) -> Any:
    """The value of a setting as the command line would have it: text, or a list of texts. Raises ConfigError."""
    value = setting.value
    if option.multiple:
        if isinstance(value, dict):
            return [f"{name}={one}" for name, one in value.items()]
        if isinstance(value, str) and setting.origin.startswith(PREFIX):
            return [part for part in value.split(",") if part]
        return [str(one) for one in value] if isinstance(value, list) else [str(value)]
    if isinstance(value, list) and setting.origin == COMMAND_LINE:
        return str(value[-1])  # of options that are repeated the last counts, too
    if isinstance(value, list | dict):
        raise ConfigError(f"{'.'.join(place)} (from {setting.origin}): takes one value")
    return str(value)


def _in_groups(params: list[Any]) -> list[Any]:
    """The same parameters, those of a group next to each other; where there are groups, the help shows them so."""
    found = dict.fromkeys(param.rich_help_panel for param in params if param.rich_help_panel and not param.hidden)
    if not found:
        return params
    named = [section.capitalize() for section in SECTIONS]
    groups = sorted(found, key=lambda group: named.index(group) if group in named else -1)
    for param in params:
        if isinstance(param, TyperOption):
            param.rich_help_panel = param.rich_help_panel or OTHER
    order = {name: place for place, name in enumerate([None, *groups, OTHER])}
    return sorted(params, key=lambda param: order.get(param.rich_help_panel, len(order)))


def of_model(model: "type[BaseModel]", **more: str) -> Iterator[Parameter]:
    """An option for each field; none is required, since there are other places to set it.

    Parameters
    ----------
    **more
        What the help of a field says besides its description.
    """
    defaults: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        required = field.is_required()
        defaults[name] = None if required else field.get_default(call_default_factory=True, validated_data=defaults)
        meaning = f"{field.description}{more.get(name, '')}"
        yield _option(name, field.annotation, defaults[name], meaning, name)


def of_signature(source: Callable[..., Any], called: Callable[[str], str] = str) -> Iterator[Parameter]:
    """An option for each parameter of a function or dataclass that is annotated with words or with one of Typer's.

    `called` gives the name of an option by that of the parameter.
    """
    for each in signature(source, eval_str=True).parameters.values():
        if get_origin(each.annotation) is Annotated:
            plain, said = get_args(each.annotation)
            default = ... if each.default is each.empty else each.default
            if isinstance(said, str):
                yield _option(each.name, plain, default, said, called(each.name))
            else:
                yield each.replace(kind=Parameter.KEYWORD_ONLY)


def _option(name: str, annotation: Any, default: Any, meaning: str, called: str) -> Parameter:
    """A parameter as Typer reads it.

    Choices are shown, but not left to Typer: what does not fit is refused by the settings, in the same words wherever a
    value comes from.
    """
    plain, shown = _plain(annotation)
    text = f"{meaning[0].upper()}{meaning[1:]}."
    if shown is not None and len(shown) > LONGEST_CHOICES:
        text, shown = f"{text} One of {', '.join(shown[1:-1].split('|'))}.", "<NAME>"
    default = list(default) if isinstance(default, dict | tuple) else default
    option = typer.Option(default, f"--{called.replace('_', '-')}", help=text, metavar=shown)
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
