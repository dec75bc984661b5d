"""Settings of a run: defaults, origins, and refusals that name what, where and what to do."""

import pickle
from pathlib import Path

import pytest

from gateway.shell.settings import SECTIONS
from matching.errors import ConfigError
from topology.given import Given
from topology.settings import LiveConfig, RunConfig, load_config, resumed

REQUIRED = {"messages": "etl", "subscriptions": ["a.jsonl", "b.jsonl"], "out": "out"}


def test_load_config_nothing_but_required_uses_defaults():
    config = load_config(REQUIRED)
    assert config.subscriptions == (Path("a.jsonl"), Path("b.jsonl"))
    assert (config.batch, config.credits, config.executor, config.world) == ("auto", None, "local", "extent")
    assert config.origins["batch"] == "default"
    assert config.origins["out"] == "command line"


def test_every_setting_of_a_run_and_a_stream_is_in_one_section():
    sectioned = [name for names in SECTIONS.values() for name in names]
    assert {sectioned.count(name) for name in LiveConfig.model_fields} == {1}


def test_load_config_says_where_each_setting_came_from():
    given = Given({**REQUIRED, "batch": 3, "credits": 7, "limit": None})
    given.origins["credits"] = "skyray.toml, line 2"
    config = load_config(given)
    assert (config.batch, config.credits, config.limit) == ("3", 7, None)
    origins = [config.origins[name] for name in ("batch", "credits", "limit")]
    assert origins == ["command line", "skyray.toml, line 2", "default"]


def test_fault_names_a_setting_as_it_is_written_and_where_it_was_set():
    given = Given({**REQUIRED, "credits": 0, "limit": 0})
    given.spelled |= {"credits": "--set topology.credits", "limit": "--limit"}
    given.origins["limit"] = "SKYRAY_INPUT__LIMIT"
    with pytest.raises(ConfigError) as caught:
        load_config(given)
    assert "--set topology.credits 0 (from command line): " in str(caught.value)
    assert "--limit 0 (from SKYRAY_INPUT__LIMIT): " in str(caught.value)


def test_resumed_takes_what_the_command_line_says_and_nothing_of_files():
    before = load_config(REQUIRED).as_json()
    given = Given({"query_bolts": 3, "credits": 9, "window": "count:5"})
    given.origins |= {"credits": "skyray.toml, line 2", "window": "SKYRAY_STREAM__WINDOW"}
    config = resumed(given, before)
    assert (config.query_bolts, config.credits, config.window) == (3, None, before["window"])
    with pytest.raises(ConfigError, match="--window cannot change when a run is resumed; .*query_bolts"):
        resumed({"window": "count:5"}, before)


def test_run_of_a_release_whose_windows_had_parts_is_resumed_and_no_other_unknown_setting_is():
    before = load_config(REQUIRED).as_json()
    assert resumed({}, {**before, "window_parts": 2}).as_json() == before
    with pytest.raises(ConfigError, match="unknown setting 'window_party'"):
        resumed({}, {**before, "window_party": 2})


@pytest.mark.parametrize(("given", "executor"), [({}, "local"), ({"address": "auto"}, "ray")])
def test_tasks_run_in_this_process_unless_a_cluster_is_named(given, executor):
    assert load_config({**REQUIRED, **given}).executor == executor
    assert load_config({**REQUIRED, **given, "executor": "ray"}).executor == "ray"


def test_signatures_that_lose_updates_need_to_be_allowed_by_name():
    given = {**REQUIRED, "signatures": "approximate", "router": "location"}
    with pytest.raises(ConfigError, match="approximate: loses updates; add --allow-loss, or take minwise"):
        load_config(given)
    assert load_config({**given, "allow_loss": True}).signatures == "approximate"
    assert "approximate" not in str(LiveConfig.model_fields["signatures"].annotation)


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
        ({"bacth": 5}, "unknown setting 'bacth'; did you mean batch?"),
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


def test_run_config_frozen_and_pickled_keeps_origins():
    config = load_config({**REQUIRED, "batch": 3})
    with pytest.raises(ValueError, match="frozen"):
        config.batch = 4  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(config))  # noqa: S301 - our own bytes
    assert again == config
    assert again.origins == config.origins


@pytest.mark.parametrize(
    ("given", "bolts"),
    [
        ({"executor": "ray"}, 2),
        ({}, 1),
        ({"router": "location"}, 2),
        ({"query_bolts": 3}, 3),
    ],
)
def test_one_query_bolt_is_enough_in_one_process_unless_its_router_or_settings_say_how_many(given, bolts):
    config = RunConfig(messages="etl", subscriptions="mine.jsonl", out="out", **given)
    assert config.query_bolts == bolts
