"""Settings of a run: precedence, origins, and refusals that name what, where and what to do."""

import os
import pickle
from pathlib import Path

import pytest

from matching.errors import ConfigError
from topology.settings import RunConfig, load_config, show_config

REQUIRED = {"messages": "etl", "subscriptions": ["a.jsonl", "b.jsonl"], "out": "out"}


@pytest.fixture(autouse=True)
def empty_surroundings(monkeypatch, tmp_path):
    """No settings file in the current folder and no variable of ours in the environment."""
    for variable in list(os.environ):
        if variable.startswith("SKYRAY_"):
            monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


def test_load_config_nothing_but_required_uses_defaults():
    config = load_config(REQUIRED)
    assert config.subscriptions == (Path("a.jsonl"), Path("b.jsonl"))
    assert (config.batch, config.credits, config.executor, config.world) == ("auto", None, "ray", "extent")
    assert config.origins["batch"] == "default"
    assert config.origins["out"] == "command line"


def test_load_config_four_places_command_line_wins(monkeypatch, tmp_path):
    (tmp_path / "skyray.toml").write_text(
        'batch = 1\ncredits = 11\nwindow = "time:5"\n[engine]\ntopk = "l2_scan"\n[window_index]\nskyline = "i3"\n'
    )
    monkeypatch.setenv("SKYRAY_BATCH", "2")
    monkeypatch.setenv("SKYRAY_CREDITS", "12")
    config = load_config({**REQUIRED, "batch": 3, "limit": None})
    assert (config.batch, config.credits, config.window) == ("3", 12, "time:5")
    assert (config.engine, config.window_index) == ({"topk": "l2_scan"}, {"skyline": "i3"})
    origins = config.origins
    assert [origins[name] for name in ("batch", "credits", "window", "engine", "limit")] == [
        "command line",
        "environment",
        "skyray.toml",
        "skyray.toml",
        "default",
    ]


def test_run_config_built_directly_ignores_surroundings(monkeypatch, tmp_path):
    (tmp_path / "skyray.toml").write_text("batch = 1\n")
    monkeypatch.setenv("SKYRAY_CREDITS", "12")
    config = RunConfig(messages=Path("m"), subscriptions=(Path("s"),), out=Path("o"))
    assert (config.batch, config.credits) == ("auto", None)


def test_load_config_lists_in_environment_are_split(monkeypatch):
    monkeypatch.setenv("SKYRAY_SUBSCRIPTIONS", "x.jsonl,y.parquet")
    monkeypatch.setenv("SKYRAY_ENGINE", "topk=skype,boolean=cell_term")
    monkeypatch.setenv("SKYRAY_WINDOW_INDEX", "topk=il_quadtree,skyline=il_quadtree")
    config = load_config({"messages": "m", "out": "o"})
    assert config.subscriptions == (Path("x.jsonl"), Path("y.parquet"))
    assert config.engine == {"topk": "skype", "boolean": "cell_term"}
    assert config.window_index == {"topk": "il_quadtree", "skyline": "il_quadtree"}


def test_load_config_named_file_is_read_instead(monkeypatch, tmp_path):
    (tmp_path / "skyray.toml").write_text("batch = 1\n")
    (tmp_path / "other.toml").write_text("batch = 2\n")
    assert load_config(REQUIRED, tmp_path / "other.toml").batch == "2"
    monkeypatch.setenv("SKYRAY_CONFIG", str(tmp_path / "other.toml"))
    assert load_config(REQUIRED).batch == "2"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch": 0}, "--batch 0 (from command line)"),
        ({"batch": "many"}, "--batch 'many'"),
        ({"executor": "rya"}, "'local' or 'ray'"),
        ({"window": "count:-1"}, "write count:N (messages) or time:SECONDS"),
        ({"decay_half_life": 1e-304}, "--decay-half-life 1e-304 (from command line): input should be greater than"),
        (
            {"decay_half_life": 1e13},
            "--decay-half-life 10000000000000.0 (from command line): input should be less than",
        ),
        ({"world": "1,2,3"}, "write WEST,SOUTH,EAST,NORTH"),
        ({"world": "5,0,-5,9"}, "west <= east"),
        ({"engine": ["skype"]}, "'skype' is not KIND=NAME"),
        (
            {"engine": ["topk=a", "topk=b"]},
            "--engine ['topk=a', 'topk=b'] (from command line): topk is given twice, a and b",
        ),
        (
            {"window_index": ["segments"]},
            "--window-index ['segments'] (from command line): 'segments' is not KIND=NAME",
        ),
        ({"window_index": ["topk=a", "topk=b"]}, "topk is given twice, a and b"),
        ({"bacth": 5}, "the command line: unknown setting 'bacth'; did you mean batch?"),
        ({"query_bolts": 0}, "--query-bolts 0"),
        ({"subscriptions": []}, "--subscriptions"),
    ],
)
def test_load_config_bad_option_says_which_and_where(options, expected):
    with pytest.raises(ConfigError) as caught:
        load_config({**REQUIRED, **options})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_config_required_missing_names_all():
    with pytest.raises(ConfigError, match="--messages is required; --subscriptions is required; --out is required"):
        load_config({})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"bacth = 5\n", "skyray.toml: unknown setting 'bacth'; did you mean batch?"),
        (b"batch = \n", "skyray.toml cannot be read as TOML"),
        (b'world = "\xff"\n', "skyray.toml cannot be read as TOML"),
        (b"batch = 0\n", "--batch 0 (from skyray.toml)"),
    ],
)
def test_load_config_bad_file_is_named(tmp_path, content, expected):
    (tmp_path / "skyray.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(REQUIRED)
    assert expected in str(caught.value)


def test_load_config_named_file_missing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_config(REQUIRED, tmp_path / "none.toml")


def test_load_config_misspelt_variable_is_refused(monkeypatch):
    monkeypatch.setenv("SKYRAY_BATHC", "5")
    with pytest.raises(ConfigError, match="SKYRAY_BATHC is no setting; did you mean SKYRAY_BATCH"):
        load_config(REQUIRED)


def test_run_config_frozen_and_pickled_keeps_origins():
    config = load_config({**REQUIRED, "batch": 3})
    with pytest.raises(ValueError, match="frozen"):
        config.batch = 4  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(config))  # noqa: S301 - our own bytes
    assert again == config
    assert again.origins == config.origins


def test_show_config_required_missing_is_shown_as_such(monkeypatch):
    monkeypatch.setenv("SKYRAY_OUT", "here")
    rows = {row["setting"]: row for row in show_config({"batch": 7})}
    assert rows.keys() == RunConfig.model_fields.keys()
    assert (rows["messages"]["value"], rows["messages"]["origin"]) == (None, "required, not set")
    assert (rows["out"]["value"], rows["out"]["origin"]) == ("here", "environment")
    assert (rows["batch"]["value"], rows["batch"]["origin"]) == ("7", "command line")
    assert all(row["meaning"] for row in rows.values())


def test_bolts_beside_many_query_bolts_are_several_unless_settings_say_how_many():
    many = RunConfig(messages="etl", subscriptions="mine.jsonl", out="out", query_bolts=64)
    few = RunConfig(messages="etl", subscriptions="mine.jsonl", out="out", query_bolts=15)
    named = RunConfig(messages="etl", subscriptions="mine.jsonl", out="out", query_bolts=64, tuple_bolts=1)
    assert [(each.tuple_bolts, each.distribution_bolts) for each in (many, few, named)] == [(4, 4), (1, 1), (1, 4)]


@pytest.mark.parametrize(
    ("given", "bolts"),
    [
        ({}, 2),
        ({"executor": "local"}, 1),
        ({"executor": "local", "router": "location"}, 2),
        ({"executor": "local", "query_bolts": 3}, 3),
    ],
)
def test_one_query_bolt_is_enough_in_one_process_unless_its_router_or_settings_say_how_many(given, bolts):
    config = RunConfig(messages="etl", subscriptions="mine.jsonl", out="out", **given)
    assert config.query_bolts == bolts
