"""A run of all kinds by influence has the digest of one by hash, and says what was reported."""

from gateway.runs.verify import verify_run
from tests.support.stories import product
from topology.running import run


def test_run_by_influence_has_the_same_digest_and_reports_its_keys(tmp_path):
    story = product()
    more = {"query_bolts": 3, "checkpoint_every": None, "overwrite": True}
    runs = {
        router: run(story.config(str(tmp_path / router)).model_copy(update={**more, "router": router}))
        for router in ("hashing", "influence")
    }
    assert runs["influence"]["digest"] == runs["hashing"]["digest"]
    assert sum(runs["influence"]["delivery"]["updates"].values()) > 1_000
    assert verify_run(tmp_path / "influence", None).exact
    keys = runs["influence"]["routing"]["influence_keys"]
    assert keys["received"] > 0 and keys["bytes"] > 0
    assert "influence_keys" not in runs["hashing"]["routing"]
