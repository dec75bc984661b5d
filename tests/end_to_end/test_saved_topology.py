"""The whole product, saved at a quiet boundary in mid-stream and gone on with, also with other numbers of bolts.

Everything that is not derived goes through frames (`topology.core.checkpoint.task_states`): operators, the log of
messages, positions of spouts, stream time and object versions, names and digest of delivery. A run that was saved must
end with the digest and the results of one that was not.
"""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from bolts.query import QueryBolt
from distribution.influence import InfluenceBoard
from distribution.routers import REBALANCING, placeable
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import EngineError
from matching.kinds import KINDS
from tests.support.covering import tiered
from tests.support.etl_folder import random_rows, with_objects, write_etl
from topology.core.executors.local import pause_local, run_local
from topology.settings import RunConfig
from topology.wiring import build_plan

MESSAGES, BATCH = 600, 40
#: Router, signatures, window, engines and window indexes; of each other engine that is saved tells
#: `tests/property/test_room_states.py`, and to compile these takes longer than all else here.
NAMED = [
    ("hashing", "spatial+text", "time:40", {"topk": "l2_scan", "skyline": "eager"}, {}),
    ("location", "off", "time:40", {"boolean": "lfilter", "skyline": "lazy"}, {"skyline": "mf_rtree"}),
    ("location", "minwise", "count:90", {"topk": "inverted_file", "skyline": "bnl"}, {}),
    ("keyword", "off", "count:90", {"boolean": "mbr_trie", "topk": "skype_paper"}, {}),
    ("prefix", "off", "time:40", {"boolean": "rt_tree"}, {}),
]
#: The same with the engines that a run has by itself.
CASES = [
    ("hashing", "off", "count:90", {}, {}),
    *((*case[:3], {}, {}) for case in NAMED),
    ("dkm-sks", "off", "count:90", {}, {}),
    ("sop", "off", "time:40", {}, {}),
    ("influence", "spatial", "count:90", {}, {}),
]
#: Query, tuple and distribution bolts before and after.
SAME, OTHER = ((3, 2, 2), (3, 2, 2)), ((4, 1, 2), (2, 3, 1))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Messages of which a third are versions of objects, and subscriptions of every kind, a third of which end."""
    folder = tmp_path_factory.mktemp("saved")
    etl = write_etl(folder / "etl", with_objects(random_rows(MESSAGES, late_s=25)))
    files = {}
    for kind in (kind.name for kind in KINDS.run):
        files[kind] = folder / f"{kind}.jsonl"
        share = 0.6 if KINDS.named(kind).place == "region" else None
        generate_subscriptions(etl, kind, 40, 4, files[kind], until_share=0.3, region_share=share, max_frequency=1.0)
    # the same ids again in mid-stream, of other kinds: who follows whom must be known after a pause, too
    again = folder / "again.jsonl"
    rng, rows = np.random.default_rng(8), []
    for name, file in files.items():
        of_kind = [json.loads(line) for line in file.read_text().splitlines()[:12]]
        others = [other for other in files if other != name]
        for row in of_kind:
            ids = files[others[int(rng.integers(len(others)))]].read_text().splitlines()
            row |= {"subscription_id": json.loads(ids[int(rng.integers(12))])["subscription_id"]}
            row |= {"at": int(rng.integers(60, MESSAGES - 60))}
            row.pop("until", None)
            rows.append(row)
    again.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return etl, files, again


def plan_of(inputs, case, tasks, out):
    etl, files, again = inputs
    router, signatures, window, engines, indexes = case
    by_keyword = router in ("keyword", "prefix")
    chosen = [file for kind, file in files.items() if not (by_keyword and placeable(router, KINDS, kind, False))]
    if not by_keyword:
        chosen.append(again)
    query, tuples, distribution = tasks
    config = RunConfig(
        messages=etl, subscriptions=tuple(chosen), out=out, window=window, batch=BATCH, executor="local",
        router=router, signatures=signatures, engine=engines, window_index=indexes, query_bolts=query,
        tuple_bolts=tuples, distribution_bolts=distribution, sink="parquet",
        distance="plane" if set(engines.values()) | set(indexes.values()) else "sphere",
    )  # fmt: skip
    out.mkdir()
    return build_plan(config)


def ended(report, out):
    """Digest, counts of updates, and the results of a run."""
    figures = report.components["delivery"].tasks[0].figures
    return figures["digest"], figures["updates"], pq.read_table(out / "results.parquet").to_pylist()


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.wide) for case in NAMED)],
    ids=lambda case: "-".join(case[:3]) + ("-named" if case[3] else ""),
)
@pytest.mark.parametrize("tasks", tiered([pytest.param(OTHER, id="other"), pytest.param(SAME, id="same")], 2))
def test_run_saved_twice_in_mid_stream_ends_as_one_that_was_not(inputs, case, tasks, tmp_path):
    before, after = tasks
    whole = run_local(plan_of(inputs, case, before, tmp_path / "whole"), seed=1)
    wanted = ended(whole, tmp_path / "whole")
    assert min(wanted[1].values()) > 50 and len(wanted[2]) > 20, "a run of few updates proves little"
    saved = pause_local(plan_of(inputs, case, before, tmp_path / "first"), 4, seed=2)
    saved = pause_local(plan_of(inputs, case, after, tmp_path / "second"), 9, seed=3, resume=saved)
    report = run_local(plan_of(inputs, case, before, tmp_path / "last"), seed=4, resume=saved)
    assert ended(report, tmp_path / "last") == wanted
    assert not (tmp_path / "first" / "results.parquet").exists()
    routed = [task.figures["messages"] for task in report.components["distribution"].tasks]
    assert sum(routed) == MESSAGES, "figures are of the whole run"
    if case[0] == "hashing":
        taken = [
            sum(task.figures["subscriptions_taken"] for task in each.components["query"].tasks)
            for each in (whole, report)
        ]
        assert taken[0] == taken[1] > 200


#: Of each router that can: what the three query tasks are said to have worked, twice.
DEALT_ANEW = [case for case in CASES if case[0] in REBALANCING]
DEALT_ANEW += [(router, *CASES[0][1:]) for router in REBALANCING if router not in [case[0] for case in CASES]]
WORKED = ((9_000, 1_000, 1_000), (8_000, 500, 1_000))


def held(report):
    return [sum(task.figures["subscriptions"].values()) for task in report.components["query"].tasks]


def dealt_anew_twice(inputs, case, folder):
    """The run to its end, of which loads were dealt out anew behind two batches."""
    tasks = (3, 2, 2)
    saved = pause_local(plan_of(inputs, case, tasks, folder / "first"), 4, seed=2)
    saved = saved._replace(work={"query": WORKED[0]})
    saved = pause_local(plan_of(inputs, case, tasks, folder / "second"), 9, seed=3, resume=saved)
    saved = saved._replace(work={"query": WORKED[1]})
    return run_local(plan_of(inputs, case, tasks, folder / "last"), seed=4, resume=saved)


@pytest.mark.parametrize("case", DEALT_ANEW, ids=lambda case: "-".join(case[:3]))
def test_run_dealt_out_anew_twice_ends_as_one_that_was_not(inputs, case, tmp_path):
    whole = run_local(plan_of(inputs, case, (3, 2, 2), tmp_path / "whole"), seed=1)
    wanted = ended(whole, tmp_path / "whole")
    report = dealt_anew_twice(inputs, case, tmp_path)
    assert ended(report, tmp_path / "last") == wanted
    assert held(report) != held(whole), "nobody was moved: nothing was tested"
    # whoever was said to do most of the work holds less than before
    assert held(report)[0] < held(whole)[0]


@pytest.mark.parametrize("case", [DEALT_ANEW[0], ("kop", *CASES[0][1:])], ids=lambda case: case[0])
def test_task_that_does_not_hear_of_the_dealing_is_found_out(inputs, case, tmp_path, monkeypatch):
    """What is broken on purpose: one query task goes by the parts there were."""
    wanted = ended(run_local(plan_of(inputs, case, (3, 2, 2), tmp_path / "whole")), tmp_path / "whole")

    def restore(bolt, saved, rightly=QueryBolt.restore):
        rightly(bolt, saved._replace(work={}) if bolt.context.task == 1 else saved)

    monkeypatch.setattr(QueryBolt, "restore", restore)
    try:
        report = dealt_anew_twice(inputs, case, tmp_path)
    except EngineError:
        return  # noticed by the engine itself
    assert ended(report, tmp_path / "last") != wanted


def test_router_that_forgets_where_restored_results_may_change_is_found_out(inputs, tmp_path, monkeypatch):
    """What is broken on purpose: keys of influence after a restore."""
    case, nothing, tasks = CASES[-1], tmp_path / "nothing.jsonl", (5, 1, 1)
    nothing.touch()
    only_knn = inputs[0], {"knn": inputs[1]["knn"]}, nothing
    wanted = ended(run_local(plan_of(only_knn, case, tasks, tmp_path / "whole")), tmp_path / "whole")
    saved = pause_local(plan_of(only_knn, case, tasks, tmp_path / "first"), 7)
    rightly = run_local(plan_of(only_knn, case, tasks, tmp_path / "rightly"), resume=saved)
    assert ended(rightly, tmp_path / "rightly") == wanted
    monkeypatch.setattr(InfluenceBoard, "enter", lambda self, table, radius: None)
    report = run_local(plan_of(only_knn, case, tasks, tmp_path / "last"), resume=saved)
    assert ended(report, tmp_path / "last") != wanted


@pytest.mark.parametrize("lost", ["buffer", "kept"])
def test_run_that_loses_what_a_room_has_saved_is_found_out(inputs, tmp_path, lost):
    """What is broken on purpose: results of one kind are not saved."""
    case = CASES[0]
    wanted = ended(run_local(plan_of(inputs, case, (2, 1, 1), tmp_path / "whole")), tmp_path / "whole")
    saved = pause_local(plan_of(inputs, case, (2, 1, 1), tmp_path / "first"), 7)
    parts = {name: [dict(task) for task in tasks] for name, tasks in saved.parts.items()}
    for task in parts["query"]:
        for name in [name for name in task if f"/{lost}" in name]:
            task[name] = np.zeros_like(task[name]) if "offsets" in name else task[name][:0]
    broken = run_local(plan_of(inputs, case, (2, 1, 1), tmp_path / "last"), resume=saved._replace(parts=parts))
    assert ended(broken, tmp_path / "last") != wanted
