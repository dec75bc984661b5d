"""The command line: answers, refusals with their exit codes, and nothing on standard output but the answer."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
import typer

import gateway.cli as cli
import gateway.commands.etl as etl_command
import gateway.commands.run as run_command
from gateway.commands.topology import LEGEND
from gateway.shell import interrupts
from gateway.shell.settings import SECTIONS
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import (
    ConfigError,
    DeliveryError,
    InputError,
    InUseError,
    OverloadError,
    PackagingError,
    TopologyError,
)
from spark_etl.options import EtlOptions
from tests.support.surroundings import without_settings
from topology.settings import RunConfig


@pytest.fixture(autouse=True)
def empty_surroundings(monkeypatch, tmp_path):
    without_settings(monkeypatch, tmp_path)


def commands():
    """Every command with its path, `subscriptions generate` as one."""
    root = typer.main.get_command(cli.app)
    found = {}
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner is None:
            found[name] = command
        else:
            found.update({f"{name} {part}": child for part, child in inner.items()})
    return found


def test_cli_commands_are_those_that_scripts_rely_on():
    expected = {"demo", "etl", "subscriptions generate", "run", "verify", "bench", "loadtest", "plan", "doctor"}
    expected |= {"scale", "feed", "feed-demo", "backup", "convert", "prune"}
    expected |= {"show", "explain", "match", "preview", "live", "serve", "subscriptions check"}
    expected |= {"keys create", "keys list", "keys revoke"}
    assert expected | {"config show", "topology show", "version"} == commands().keys()


def test_cli_list_of_commands_has_every_file_and_the_first_sentence_of_its_help():
    root = typer.main.get_command(cli.app)
    files = Path(cli.__file__).parent.joinpath("commands").glob("*.py")
    assert cli.COMMANDS.keys() == {
        file.stem.replace("_", "-") for file in files if "\napp = typer.Typer(" in file.read_text()
    }
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        assert cli.COMMANDS[name] == command.help.split("\n\n")[0]


def test_cli_help_imports_no_command():
    script = "import sys; from gateway import cli; cli.main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert "feed-demo" in done.stdout, done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert not {"numba", "pyarrow", "pydantic"} & set(loaded)
    assert not [name for name in loaded if name.startswith("gateway.commands")]


def parameters(name):
    """The parameters of a command by name, as they are once it is asked for them."""
    command = commands()[name]
    return {param.name: param for param in command.get_params(typer.Context(command, info_name=name))}


@pytest.mark.parametrize("name", sorted(commands()))
def test_cli_every_command_has_json_example_and_exit_codes(name):
    params = parameters(name).values()
    assert "--json" in {option for param in params for option in param.opts}
    assert not any(param.display_type_rich(None) for param in params if getattr(param, "is_flag", False))
    assert f"skyray {name}" in commands()[name].epilog
    assert "Exit codes:" in commands()[name].epilog
    assert all(param.help for param in params)


@pytest.mark.parametrize("command", ["run", "topology show"])
@pytest.mark.parametrize("name", RunConfig.model_fields)
def test_cli_run_and_topology_show_have_an_option_of_each_setting(command, name):
    """Its description and its default are those of the field; a yes or no is a flag, a choice lists what there is."""
    field, option = RunConfig.model_fields[name], parameters(command)[name]
    is_option = name in (*run_command.SHOWN, *run_command.QUIET)
    section = next(section for section, names in SECTIONS.items() if name in names)
    assert option.opts == ["--" + name.replace("_", "-") if is_option else f"--set {section}.{name}"]
    assert not option.secondary_opts and not option.required and option.hidden == (name not in run_command.SHOWN)
    assert option.help.casefold().startswith(field.description.casefold())
    default = None if field.is_required() else getattr(RunConfig(messages="m", subscriptions="s", out="o"), name)
    assert option.default == (list(default) if option.multiple and default is not None else default)
    assert option.is_flag == (field.annotation is bool)
    assert option.multiple == (get_origin(field.annotation) in (tuple, dict))
    if get_origin(field.annotation) is Literal:
        choices = get_args(field.annotation)
        assert option.metavar == f"<{'|'.join(choices)}>" or (
            option.metavar == "<NAME>" and f"One of {', '.join(choices)}." in option.help
        )


def test_cli_topology_show_explains_every_mark_and_word_it_has(capsys):
    assert cli.main(["topology", "show"]) == 0
    shown = capsys.readouterr().out
    edges = [line.split() for line in shown.splitlines() if "->" in line or "~>" in line]
    used = {word.rstrip(",") for line in edges if line[0] not in LEGEND for word in (line[1], line[3])}
    assert {"-->", "~~>", "all", "direct"} <= used
    said = {line.split("  ")[0].strip() for line in shown.splitlines() if line.split("  ")[0].strip() in LEGEND}
    assert used | {"clock", "x N"} == said


def test_cli_run_help_shows_defaults_choices_and_flags(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.main(["run", "--help"]) == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("│ --")}
    assert "<float>" in lines["--checkpoint-every"] and "[default: 10.0]" in lines["--checkpoint-every"]
    assert "--restarts" not in lines and "--window-index" not in lines
    assert "[default: auto]" in lines["--batch"]
    assert "<local|ray>" in lines["--executor"] and "[default: local]" in lines["--executor"]
    assert "<KIND=NAME>" in lines["--engine"]
    assert "--no-" not in lines["--overwrite"] and "default" not in lines["--overwrite"]


@pytest.mark.parametrize("command", ["serve", "live"])
def test_cli_of_a_stream_takes_no_signatures_that_lose_updates(capsys, tmp_path, command):
    text = parameters(command)["signatures"].help
    assert "minwise" in text and "approximate" not in text and "LOSES" not in text
    assert "allow_loss" not in parameters(command)
    if command == "serve":  # the same settings, behind imports of seconds
        return
    assert cli.main([command, "--out", str(tmp_path / "out"), "--set", "topology.signatures=approximate"]) == 2
    assert "--set topology.signatures 'approximate'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "live", "etl", "topology show"])
def test_cli_long_help_is_in_groups_that_fit_80_columns(capsys, monkeypatch, command):
    """Every option below the heading of its group, in the order of the groups, and what belongs to none at the end."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(re.search(r"\w\|$|<\w+\|\w*$", line.strip("│ ")) for line in lines), "a name is broken"
    shown, heading = {}, ""
    for line in lines:
        heading = found[1] if (found := re.match("╭─ (.*?) ─", line)) else heading
        if option := re.match(r"│ [* ]*(--[\w-]+)", line):
            shown[option[1]] = heading
    headings = list(dict.fromkeys(shown.values()))
    assert headings[-1] == "Other" and {"--json", "--help"} <= {
        name for name, where in shown.items() if where == "Other"
    }
    sections = [section.capitalize() for section in SECTIONS]
    assert "Options" not in headings and len(headings) >= 3
    found = [heading for heading in headings if heading in sections]
    assert found == sorted(found, key=sections.index)
    made = commands()[command]
    made.get_params(typer.Context(made, info_name=command))
    for (section, _), option in made.settings.items():
        if not option.hidden and section in SECTIONS:
            assert shown[option.opts[0]] == section.capitalize()


def test_cli_run_passes_on_what_was_given_and_nothing_else(monkeypatch):
    """Also a value that is the default: it was said on the command line, which wins over a file."""
    told = {}

    def load_config(options):
        told.update(options)
        raise ConfigError("enough")

    monkeypatch.setattr("gateway.commands.running.load_config", load_config)
    arguments = ["--batch", "5000", "--overwrite", "--engine", "topk=a", "--engine", "boolean=b", "--messages", "m"]
    assert cli.main(["run", *arguments, "--subscriptions", "x", "y"]) == 2
    assert told == {
        "batch": "5000",
        "overwrite": True,
        "engine": ["topk=a", "boolean=b"],
        "messages": Path("m"),
        "subscriptions": [Path("x"), Path("y")],
    }


def test_cli_etl_has_an_option_of_each_setting():
    """Under the names that scripts rely on."""
    params = parameters("etl")
    called = {"input_format": "format", "csv_delimiter": "delimiter", "stem_language": "stem"}
    for field in fields(EtlOptions):
        if field.name == "inputs":
            continue
        option = params[field.name]
        name = called.get(field.name, field.name.removesuffix("_column"))
        section = next((section for section in etl_command.SHARED if name in SECTIONS[section]), "etl")
        assert option.help
        assert option.opts == (
            [f"--{name.replace('_', '-')}"] if name in etl_command.SHOWN else [f"--set {section}.{name}"]
        )
        assert option.required == (field.default is MISSING)
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        assert option.required or option.default == default
        assert option.is_flag == (get_args(field.type)[0] is bool)
    assert params["raw"].required and params["raw"].nargs == -1


def test_cli_etl_runs_with_what_was_given_and_the_defaults_of_the_rest(monkeypatch, capsys):
    def run_etl(options, **_):
        assert options == EtlOptions(inputs=("a", "b"), out="o", lat_column="y", stop_share=0.5, overwrite=True)
        raise ConfigError("enough")

    monkeypatch.setattr("spark_etl.job.run_etl", run_etl)
    arguments = ["a", "b", "--out", "o", "--column", "lat=y", "--stop-share", "0.5", "--overwrite"]
    assert cli.main(["etl", *arguments]) == 2
    assert capsys.readouterr().err == "error: enough\n"


def test_cli_generate_has_an_option_of_each_part_of_a_recipe():
    recipe = {"k", "min_keywords", "max_keywords", "region_share", "until_share", "match"}
    params, known = parameters("subscriptions generate"), signature(generate_subscriptions).parameters
    assert recipe <= params.keys() and recipe <= known.keys()
    assert all(params[name].default == known[name].default for name in recipe)


def test_cli_help_without_heavy_imports():
    code = (
        "import sys; from gateway.cli import main; main(['--help']);"
        "heavy = {'ray', 'pyspark', 'pyarrow', 'numba', 'pandas', 'pydantic'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=cli_home())
    assert done.returncode == 0, done.stderr
    assert "subscriptions" in done.stdout


HEAVY = {"numba", "pyarrow", "ray", "pyspark", "pandas", "fastapi", "uvicorn", "matplotlib"}
#: Their options are the parameters of the functions that they call.
LOADED_FOR_HELP = frozenset(("bench", "loadtest", "subscriptions"))


def test_help_of_a_command_imports_nothing_heavy():
    pages = [name for name in commands() if name.partition(" ")[0] not in LOADED_FOR_HELP]
    code = f"""if True:
        import sys
        from gateway.cli import main
        for page in {pages!r}:
            assert main([*page.split(), "--help"]) == 0
            heavy = {HEAVY!r} & set(sys.modules)
            assert not heavy, f"{{page}} imports {{heavy}}"
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=cli_home())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(pages) > 20


def cli_home():
    from gateway.shell.packages import home

    return home()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--foo"], "No such option: --foo"),
        (["subscriptions", "generate", "--messages", "m"], "Missing option '--kind'"),
        (["etl", "--out", "o"], "Missing argument 'raw'"),
        (["run", "--executor", "rya"], "--executor 'rya' (from command line): input should be 'local' or 'ray'"),
        (["nothing"], "No such command 'nothing'"),
        (["run", "--limit", "x"], "Invalid value for '--limit'"),
        (["run"], "--messages is required; --subscriptions is required; --out is required"),
        (["run", "--messages", "m", "--subscriptions", "a", "b", "--out", "o", "--batch", "0"], "--batch 0"),
        (["run", "--messages", "m", "--subscriptions", "a", "--out", "o", "--config", "none.toml"], "does not exist"),
        (["verify", "x", "--all", "--sample", "3"], "--all and --sample exclude each other"),
        (["demo", "--min-population", "7"], "choose one of 500, 1000, 5000, 15000"),
        (["serve"], "--out: name the folder of the stream; or add --demo"),
        (
            ["serve", "--set", "server.demo_rate=5", "--out", "o"],
            "server.demo_rate: is the rate of the demo's messages",
        ),
        (["loadtest", "--rate", "0"], "rate 0.0 for 30.0 s is no message at all"),
        (
            ["subscriptions", "generate", "--messages", "m", "--kind", "bool", "--count", "1", "--out", "o"],
            "--kind bool: choose one of boolean, topk, decay, knn, skyline",
        ),
    ],
)
def test_cli_wrong_use_is_one_line_and_exit_code_2(capsys, arguments, expected):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert expected in printed.err


CHOICES = [
    ("ENGINE", "tpk=skype", "unknown kind 'tpk'; choose from boolean, topk, decay, knn, skyline"),
    ("ENGINE", "topk=skyp", "engine 'skyp' for topk: choose one of skype, skype_paper"),
    ("ENGINE", "knn=grid", "engine 'grid' for knn: choose one of influence_grid, single_grid"),
    ("ENGINE", "skype", "--engine ['skype'] (from SKYRAY_TOPOLOGY__ENGINE): 'skype' is not KIND=NAME"),
    ("WINDOW_INDEX", "topk=segment", "window index 'segment' for topk: choose one of segments"),
    ("WINDOW_INDEX", "skyline=segments", "window index 'segments' for skyline: choose one of grid, mf_rtree"),
    ("WINDOW_INDEX", "boolean=segments", "window index for boolean: there is none"),
    (
        "WINDOW_INDEX",
        "segments",
        "--window-index ['segments'] (from SKYRAY_TOPOLOGY__WINDOW_INDEX): 'segments' is not KIND=NAME",
    ),
]


@pytest.mark.parametrize(("setting", "value", "expected"), CHOICES)
def test_cli_engine_or_window_index_nobody_knows_is_refused_with_those_there_are(
    capsys, monkeypatch, setting, value, expected
):
    monkeypatch.setenv(f"SKYRAY_TOPOLOGY__{setting}", value)
    assert cli.main(["topology", "show"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and expected in printed.err


def test_cli_config_show_tells_engines_and_window_indexes_of_each_kind(capsys, monkeypatch):
    monkeypatch.setenv("SKYRAY_TOPOLOGY__WINDOW_INDEX", "topk=segments,skyline=i3")
    monkeypatch.setenv("SKYRAY_TOPOLOGY__ENGINE", "topk=l2_scan")
    assert cli.main(["config", "show", "--json"]) == 0
    rows = {row["setting"]: row["value"] for row in json.loads(capsys.readouterr().out)["settings"]}
    assert rows["topology.window_index"] == ["topk=segments", "skyline=i3"]
    assert rows["topology.engine"] == ["topk=l2_scan"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["run"], ["topk: skype;", "papers and opponents: docs/papers.md"]),
        (["subscriptions", "generate"], ["boolean, topk, decay, knn or skyline"]),
        (["bench"], ["boolean, topk, decay, knn or skyline."]),
        (["demo"], ["10 times fewer of skyline"]),
    ],
)
def test_cli_help_names_the_kinds_of_the_table(capsys, monkeypatch, command, expected):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main([*command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in expected:
        assert part in shown
    assert "{" not in shown.replace("{kind}", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("c"), 2),
        (InUseError("u"), 9),
        (TopologyError("t"), 3),
        (InputError("bad_file", "i"), 4),
        (DeliveryError("d"), 6),
        (OverloadError("o"), 7),
        (PackagingError("p"), 8),
        (OSError(28, "No space left on device", "/full/file"), 6),
        (OSError(30, "Read-only file system", "/read/only"), 6),
        (FileNotFoundError(2, "No such file or directory", "/nowhere"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_cli_error_in_command_gives_its_exit_code(monkeypatch, capsys, error, code):
    def broken(*_args):
        raise error

    monkeypatch.setattr("gateway.shell.doctor.examine", broken)
    assert cli.main(["doctor"]) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(("error", "lines"), [(InputError("bad_file", "x"), 1), (TopologyError("x"), 4)])
def test_cli_traceback_of_a_component_is_shown_where_the_program_is_to_blame(monkeypatch, capsys, error, lines):
    def broken(*_args):
        raise error

    error.args = ("query:0 failed in execute: no disk\nTraceback (most recent call last):\n  File x\nOSError: no disk",)
    monkeypatch.setattr("gateway.shell.doctor.examine", broken)
    cli.main(["doctor"])
    printed = capsys.readouterr().err
    assert printed.startswith("error: query:0 failed in execute: no disk\n")
    assert printed.count("\n") == lines


def test_cli_no_arguments_prints_help_and_no_error(capsys):
    assert cli.main([]) == 2
    printed = capsys.readouterr()
    assert "Usage: skyray" in printed.out
    assert "error" not in printed.err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--subscriptions", "a", "b", "--out", "o"], ["--subscriptions", "a", "--subscriptions", "b", "--out", "o"]),
        (["--subscriptions", "a"], ["--subscriptions", "a"]),
        (["--out", "o", "--subscriptions"], ["--out", "o", "--subscriptions"]),
        (["--subscriptions", "a", "--subscriptions", "b", "c"], ["--subscriptions", "a"] + ["--subscriptions", "b"]
         + ["--subscriptions", "c"]),
        (["--subscriptions=a", "--json"], ["--subscriptions=a", "--json"]),
    ],
)  # fmt: skip
def test_spread_several_values_become_several_options(given, expected):
    assert cli.spread(given) == expected


def test_cli_json_is_one_object_on_standard_output(capsys):
    assert cli.main(["config", "show", "--json"]) == 0
    printed = capsys.readouterr()
    assert {"stream.batch", "limits.most_streams"} <= {row["setting"] for row in json.loads(printed.out)["settings"]}
    assert printed.err == ""


def test_cli_version_names_what_it_stands_on(capsys):
    assert cli.main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {
        "skyray", "python", "ray", "pyspark", "numba", "numpy", "pyarrow",
    }  # fmt: skip


def test_cli_config_show_without_colours_when_piped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("SKYRAY_STREAM__BATCH", "77")
    assert cli.main(["config", "show"]) == 0
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if line.strip().startswith("stream.batch "))
    assert "77" in line
    assert "SKYRAY_STREAM__BATCH" in line
    assert "\x1b" not in printed


def test_cli_closed_pipe_ends_quietly(monkeypatch, capsys):
    class Closed(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    assert cli.main(["version", "--json"]) == 141
    assert capsys.readouterr().err == ""
    sys.stdout.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_cli_signal_unwinds_and_gives_its_exit_code(number, code):
    """A command that waits is told to stop: what it holds is given back before the process ends."""
    script = (
        "import sys, threading, gateway.cli as cli, gateway.shell.doctor as doctor\n"
        "import subprocess\n"
        "def wait(_folder):\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    sys.stdout.write(f'{child.pid}\\n'); sys.stdout.flush()\n"
        "    try:\n"
        "        sys.stdout.write('waiting\\n'); sys.stdout.flush(); threading.Event().wait(30)\n"
        "    finally:\n"
        "        sys.stdout.write('given back\\n')\n"
        "doctor.examine = wait\n"
        "sys.exit(cli.main(['doctor']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cli_home()
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.stdout.readline() == "waiting\n"
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code
    assert out == "given back\n"
    assert "Traceback" not in err
    assert time.monotonic() - began < 15
    assert not os.path.exists(f"/proc/{child}"), "a process that the command started was left behind"


def test_end_children_earlier_ones_are_left_alone():
    with subprocess.Popen(["sleep", "30"]) as old, subprocess.Popen(["sleep", "30"]) as young:
        try:
            assert interrupts.end_children(interrupts.children() - {young.pid}) == 1
            assert not os.path.exists(f"/proc/{young.pid}")
            assert old.poll() is None
        finally:
            old.kill()
            young.kill()


def test_end_children_stubborn_one_is_killed(monkeypatch):
    monkeypatch.setattr(interrupts, "END_S", 0.3)
    earlier = interrupts.children()
    deaf = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(["sh", "-c", deaf], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert interrupts.end_children(earlier, patience_s=0.3) >= 1
        assert not os.path.exists(f"/proc/{child.pid}")
