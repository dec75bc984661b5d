"""Which components of the product share an actor."""

import os
from pathlib import Path

import pytest

from tests.support.example_topologies import word_count
from topology.placement import LIGHT, together_of
from topology.settings import RunConfig


@pytest.mark.parametrize(
    ("settings", "cores", "shared"),
    [
        ({}, 2, True),
        ({}, 64, False),
        ({"placement": "spread"}, 2, False),
        ({"placement": "shared"}, 64, True),
        ({"follow": True}, 2, False),
        ({"address": "10.0.0.1:6379"}, 2, False),
        ({"address": "10.0.0.1:6379", "placement": "shared"}, 64, True),
    ],
)
def test_together_of_settings_and_cores_says_who_shares(monkeypatch, settings, cores, shared):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    config = RunConfig(messages=Path("etl"), subscriptions=(Path("s.jsonl"),), out=Path("out"), **settings)
    assert together_of(config, word_count()) == ((LIGHT,) if shared else ())
