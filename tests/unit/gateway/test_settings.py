"""Settings from options, `--set`, environment and file: precedence, origins, and refusals that name where and what."""

import json

import pytest
import typer

import gateway.cli as cli
from gateway.runs.interface import run_settings
from gateway.shell.options import Command
from gateway.shell.settings import SECTIONS
from matching.errors import ConfigError
from tests.support.surroundings import without_settings
from topology.given import Given

#: What scripts rely on, with a value each.
RELIED_ON = {
    "messages": "etl", "subscriptions": "a.jsonl", "out": "out", "window": "count:5", "executor": "local",
    "router": "location", "query-bolts": "2", "tuple-bolts": "2", "distribution-bolts": "2", "aggregation-bolts": "2",
    "engine": "topk=skype", "window-index": "topk=segments", "world": "earth", "batch": "7", "limit": "9",
    "checkpoint-every": "0", "address": "auto",
}  # fmt: skip


@pytest.fixture(autouse=True)
def empty_surroundings(monkeypatch, tmp_path):
    without_settings(monkeypatch, tmp_path)


@pytest.fixture
def given_to(monkeypatch):
    """The settings that `skyray run` gets from a command line."""

    def of(*arguments):
        got = []

        def load_config(options):
            got.append(options)
            raise ConfigError("enough")

        monkeypatch.setattr("gateway.commands.running.load_config", load_config)
        assert cli.main(["run", *arguments]) == 2
        return got[0] if got else None

    return of


def commands():
    root = typer.main.get_command(cli.app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        for inner in getattr(command, "commands", {name: command}).values():
            inner.get_params(typer.Context(inner, info_name=name))
            yield name, inner


def test_help_pages_have_25_options_at_most_and_every_command_has_sources_of_settings():
    for name, command in commands():
        params = command.get_params(typer.Context(command, info_name=name))
        shown = [param for param in params if param.param_type_name == "option" and not param.hidden]
        assert {"--config", "--set"} <= {option for param in shown for option in param.opts}, name
        assert len(shown) - 2 <= 25, (name, "beside --json and --help")


def test_every_option_is_a_setting_of_one_place_that_all_commands_agree_on():
    """A name of a shared section is in the table, and the options of a place take the same type everywhere."""
    types = {}
    for name, command in commands():
        for (section, setting), option in command.settings.items():
            assert section not in SECTIONS or setting in SECTIONS[section], (name, section, setting)
            types.setdefault((section, setting), set()).add(str(option.type_descriptor.annotation))
    assert {place: found for place, found in types.items() if len(found) > 1} == {}


def test_options_that_scripts_rely_on_are_taken(given_to):
    given = given_to(*(word for name, value in RELIED_ON.items() for word in (f"--{name}", value)))
    assert {name.replace("-", "_") for name in RELIED_ON} == given.keys()
    assert given["engine"] == ["topk=skype"] and given["query_bolts"] == 2


def test_the_command_line_wins_then_the_environment_then_the_file(given_to, monkeypatch, tmp_path):
    (tmp_path / "skyray.toml").write_text(
        '[stream]\nbatch = 1\nwindow = "time:5"\nworld = "earth"\n\n[topology]\ncredits = 11\nquery-bolts = 4\n'
        '[topology.engine]\ntopk = "l2_scan"\n[limits]\nmost_streams = 1\n'
    )
    monkeypatch.setenv("SKYRAY_STREAM__BATCH", "2")
    monkeypatch.setenv("SKYRAY_STREAM__WINDOW", "time:6")
    monkeypatch.setenv("SKYRAY_TOPOLOGY__WINDOW_INDEX", "topk=a,skyline=b")
    given = given_to("--batch", "3", "--set", "topology.credits=12", "--set", "topology.seed=1")
    assert given == {
        "batch": "3", "window": "time:6", "world": "earth", "credits": 12, "query_bolts": 4, "engine": ["topk=l2_scan"],
        "window_index": ["topk=a", "skyline=b"], "seed": 1,
    }  # fmt: skip
    assert {name: given.origin(name) for name in given} == {
        "batch": "command line", "credits": "command line", "seed": "command line",
        "window": "SKYRAY_STREAM__WINDOW", "window_index": "SKYRAY_TOPOLOGY__WINDOW_INDEX",
        "world": "skyray.toml, line 4", "query_bolts": "skyray.toml, line 8", "engine": "skyray.toml, line 9",
    }  # fmt: skip
    assert given.of_command_line().keys() == {"batch", "credits", "seed"}
    assert given.spelled["credits"] == "--set topology.credits" and given.spelled["batch"] == "--batch"


def test_another_file_is_read_where_one_is_named(given_to, monkeypatch, tmp_path):
    for name, batch in (("skyray.toml", 1), ("b.toml", 2), ("c.toml", 3)):
        (tmp_path / name).write_text(f"[stream]\nbatch = {batch}\n")
    assert given_to()["batch"] == "1"
    monkeypatch.setenv("SKYRAY_CONFIG", "b.toml")
    assert given_to()["batch"] == "2"
    assert given_to("--config", "c.toml")["batch"] == "3"


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_yes_or_no_is_set_by_its_word(given_to, value):
    assert given_to("--set", f"input.strict={value}", "--set", f"output.overwrite={value}") == {
        "strict": value == "true", "overwrite": value == "true",
    }  # fmt: skip


def test_of_a_setting_of_one_value_that_is_repeated_the_last_counts(given_to):
    given = given_to("--set", "topology.credits=3", "--set", "topology.credits=7")
    assert str(given["credits"]) == "7"


def test_a_setting_of_several_values_is_repeated(given_to):
    given = given_to("--set", "input.subscriptions=a b.jsonl", "--set", "input.subscriptions=c,d.jsonl")
    assert list(map(str, given["subscriptions"])) == ["a b.jsonl", "c,d.jsonl"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[stream]\n\nbacth = 5\n", "skyray.toml, line 3: unknown setting stream.bacth; did you mean stream.batch?"),
        ("[strem]\nbatch = 5\n", "skyray.toml, line 2: unknown setting strem.batch; did you mean stream.batch?"),
        ("[input]\nquery_bolts = 5\n", "line 2: unknown setting input.query_bolts; did you mean topology.query_bolts?"),
        ("\nbatch = 5\n", "skyray.toml, line 2: batch is in no section; did you mean stream.batch?"),
        ("[stream]\nbatch = \n", "settings file skyray.toml cannot be read as TOML"),
        ('[stream]\nworld = "\xff"\n', "settings file skyray.toml cannot be read as TOML"),
        ("[topology]\nquery_bolts = 1.5\n", "(from skyray.toml, line 2)."),
        ('[topology]\ncredits = "many"\n', "Invalid value for '--set topology.credits'"),
        ("[topology]\ncredits = [1, 2]\n", "topology.credits (from skyray.toml, line 2): takes one value"),
        ("[topology]\nquery_bolts = 0\n", "--query-bolts 0 (from skyray.toml, line 2): input should be greater"),
        ("[topology]\ncredits = 0\n", "--set topology.credits 0 (from skyray.toml, line 2): input should be greater"),
    ],
)
def test_bad_file_is_refused_with_its_line_and_what_may_be_meant(capsys, tmp_path, content, expected):
    (tmp_path / "skyray.toml").write_bytes(content.encode("latin-1"))
    assert cli.main(["run", "--messages", "m", "--subscriptions", "s", "--out", "o"]) == 2
    printed = capsys.readouterr()
    assert expected in printed.err and printed.err.count("\n") == 1 and printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--config", "none.toml"], "settings file none.toml does not exist; name another with --config"),
        (["--set", "credits=5"], "--set credits=5: write SECTION.NAME=VALUE; did you mean topology.credits?"),
        (["--set", "topology.credts=5"], "--set topology.credts: unknown setting; did you mean topology.credits?"),
        (["--set", "limits.most_streams=5"], "--set limits.most_streams: unknown setting; this command has no such"),
        (["--set", "stream.most_terms=5"], "--set stream.most_terms: unknown setting; this command has no such"),
        (["--set", "topology.credits=x"], "Invalid value for '--set topology.credits'"),
        (["--batch", "1", "--set", "stream.batch=2"], "--batch: is given by --set stream.batch, too"),
        (["--signatures", "approximate"], "--signatures approximate: loses updates; add --allow-loss"),
    ],
)
def test_bad_command_line_is_refused(capsys, arguments, expected):
    assert cli.main(["run", "--messages", "m", "--subscriptions", "s", "--out", "o", *arguments]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["run", "--credits", "4"],
            "--credits: is no option; write --set topology.credits=VALUE, or credits = VALUE in",
        ),
        (["run", "--metrics-port", "4"], "write --set metrics.port=VALUE, or port = VALUE in [metrics] of skyray.toml"),
        (["live", "--batch", "4"], "write --set stream.batch_rows=VALUE"),
        (["live", "--lat", "y"], "write --column lat=VALUE, or lat = VALUE in [columns] of skyray.toml"),
        (["serve", "--webhook-attempts", "4"], "write --set webhooks.attempts=VALUE"),
        (["serve", "--most-streams", "4"], "write --set limits.most_streams=VALUE"),
        (["serve", "--run", "r"], "--run: is no option; write skyray show FOLDER --page"),
        (["etl", "a", "--object-id", "x"], "write --column object_id=VALUE"),
        (["feed", "a", "--sink", "x"], "write --stream=VALUE"),
        (["loadtest", "--topk", "7"], "write --count topk=VALUE"),
    ],
)
def test_an_option_that_went_says_what_to_write(capsys, command, expected):
    assert cli.main(command) == 2
    assert expected in capsys.readouterr().err


def test_misspelt_variable_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("SKYRAY_STREAM__BATHC", "5")
    assert cli.main(["run"]) == 2
    assert "SKYRAY_STREAM__BATHC: unknown setting stream.bathc; did you mean stream.batch?" in capsys.readouterr().err
    monkeypatch.delenv("SKYRAY_STREAM__BATHC")
    monkeypatch.setenv("SKYRAY_BATCH", "5")
    assert cli.main(["run"]) == 2
    assert "SKYRAY_BATCH: write SKYRAY_SECTION__NAME; did you mean stream.batch?" in capsys.readouterr().err


def test_help_is_shown_whatever_the_file_says(capsys, tmp_path):
    (tmp_path / "skyray.toml").write_text("[stream]\nbacth = 5\n")
    assert cli.main(["run", "--help"]) == 0
    assert "--batch" in capsys.readouterr().out


def test_a_section_that_only_another_command_reads_is_left_to_it(capsys, tmp_path):
    (tmp_path / "skyray.toml").write_text("[etl]\nrows_per_fiel = 5\n")
    assert cli.main(["version"]) == 0
    assert cli.main(["config", "show"]) == 2
    assert "line 2: unknown setting etl.rows_per_fiel; did you mean etl.rows_per_file?" in capsys.readouterr().err


def test_config_show_has_every_setting_with_its_origin_and_the_commands_that_read_it(capsys, monkeypatch, tmp_path):
    (tmp_path / "skyray.toml").write_text('[webhooks]\nattempts = 3\n[topology.engine]\ntopk = "l2_scan"\n')
    monkeypatch.setenv("SKYRAY_STREAM__BATCH", "77")
    assert cli.main(["config", "show", "--set", "columns.text=tweet", "--json"]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)["settings"]}
    places = {
        ".".join(place) for _, command in commands() if isinstance(command, Command) for place in command.settings
    }
    assert rows.keys() == places and all(row["meaning"] for row in rows.values())
    shown = {name: (row["value"], row["origin"]) for name, row in rows.items()}
    assert shown["webhooks.attempts"] == (3, "skyray.toml, line 2")
    assert shown["topology.engine"] == (["topk=l2_scan"], "skyray.toml, line 3")
    assert shown["stream.batch"] == ("77", "SKYRAY_STREAM__BATCH")
    assert shown["columns.text"] == ("tweet", "command line")
    assert shown["recovery.restarts"] == (5, "default") and shown["topology.executor"] == ("local", "default")
    assert rows["topology.credits"]["commands"] == "run, live, serve, topology"
    assert rows["webhooks.attempts"]["commands"] == "serve"
    assert cli.main(["config", "show", "--set", "stream.batch=0"]) == 2
    assert "--batch 0" in capsys.readouterr().err


def test_skyray_run_takes_settings_of_environment_and_file(monkeypatch, tmp_path):
    (tmp_path / "skyray.toml").write_text("[topology]\ncredits = 3\nquery_bolts = 2\n[server]\nport = 1\n")
    monkeypatch.setenv("SKYRAY_TOPOLOGY__ENGINE", "topk=skype")
    given = run_settings({"out": "o", "query_bolts": 5})
    assert given == Given({"credits": 3, "engine": "topk=skype", "query_bolts": 5, "out": "o"})
    assert given.origin("credits") == "skyray.toml, line 2" and given.origin("query_bolts") == "command line"
    (tmp_path / "skyray.toml").write_text("[verify]\nsample = 3\n")
    assert run_settings({}) == Given({"engine": "topk=skype"})
    for wrong in ("[topology]\ncredist = 3\n", "[toplogy]\ncredits = 3\n"):
        (tmp_path / "skyray.toml").write_text(wrong)
        with pytest.raises(ConfigError, match="did you mean topology.credits"):
            run_settings({})
