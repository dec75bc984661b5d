"""The dashboard for Grafana: a real Prometheus scrapes a real server, and every query of every panel has a sample."""

import json
from pathlib import Path

import pytest

from gateway.metrics import source_families
from tests.support.prometheus import Prometheus
from tests.support.serving import Served

pytestmark = [pytest.mark.promtool, pytest.mark.long]

BOARD = json.loads((Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "skyray.json").read_text())
SOURCE = {"name": "nats", "state": "reading"}
RAMEN = {"kind": "boolean", "keywords": "ramen", "region": [139, 35, 140, 36]}


def queries():
    """Title of a panel and query, with Grafana's variables filled in."""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "30s").replace("$job", ".*")
            assert "$" not in query, query
            query = query.removesuffix(" or on() vector(0)")
            if "skyray_source_" in query:  # without a broker there is none
                families = source_families({**dict.fromkeys(("records", "reconnects", "removed", "lag"), 0), **SOURCE})
                assert query.split("{")[0] in [family.name for family in families]
                continue
            yield panel["title"], query


def test_every_query_of_the_dashboard_has_a_sample(tmp_path):
    with Served(tmp_path / "out", "--set", "recovery.checkpoint_every=0.5") as served:
        served.call("POST", "/v1/subscriptions", {"subscription_id": "s1", **RAMEN})
        with Prometheus(f"127.0.0.1:{served.port}") as prometheus:

            def publish(number):
                message = {"id": f"m{number}", "text": "Ramen", "lon": 139.69, "lat": 35.68}
                assert served.call("POST", "/v1/messages?wait=delivered", message).json["delivered"]

            prometheus.await_samples("skyray_messages_total == 0")
            publish(0)
            prometheus.await_samples("skyray_released_updates_total == 1")
            publish(1)
            prometheus.await_samples("skyray_checkpoints_total > 0")
            missing = set()
            asked = 0
            for title, query in queries():
                samples = prometheus.await_samples(query)
                asked += 1
                if all(sample["value"][1] == "NaN" for sample in samples):
                    missing.add((title, query))
            assert not missing and asked > 20
            assert float(prometheus.ask("skyray_released_updates_total")[0]["value"][1]) == 2
            with pytest.raises(AssertionError, match="no sample"):  # the test can fail
                prometheus.await_samples("skyray_nothing_like_it", seconds=1)
