"""Following updates in the order of the files: right ones in a wrong order are found out, and told in words."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bolts.sinks import UPDATE_SCHEMA
from gateway.runs.update_order import follow
from gateway.runs.verify import VerifyReport, verify_run
from matching.model import ENTER, LEAVE, MATCH
from tests.support.etl_folder import random_rows, write_etl
from topology import running
from topology.settings import RunConfig

ENDS = np.array([9, 19, 29, 39])
BACK, BEHIND, MIXED, TWICE, NOT_HELD = (
    "go back",
    "behind those",
    "leave after",
    "in the result already",
    "not in the result",
)


def table_of(rows) -> np.ndarray:
    """Rows (as_of, id, seq, change) as events."""
    return np.array([[*row, 0] for row in rows], np.int64).reshape(-1, 5)


def stumbles(rows, who=(0, 1), at=(0, 0)) -> dict[str, list[int]]:
    """Which rows (as_of, id, seq, change) a follower stumbles over, by what is wrong with them."""
    followed = follow(table_of(rows), ENDS, np.array(who, np.int64), np.array(at, np.int64))
    names = (BACK, BEHIND, MIXED, TWICE, NOT_HELD)
    return {next(name for name in names if name in what): sorted(found.tolist()) for found, what in followed.faults}


def held(rows) -> set[tuple[int, int]]:
    return set(map(tuple, follow(table_of(rows), ENDS, np.arange(3), np.zeros(3, np.int64)).standing.tolist()))


def test_follow_updates_in_order_ends_at_what_is_held():
    rows = [(9, 0, 1, ENTER), (9, 1, 1, ENTER), (9, 0, 2, ENTER), (19, 0, 1, LEAVE), (19, 0, 11, ENTER)]
    rows += [(12, 1, 12, MATCH), (29, 0, 2, LEAVE), (29, 0, 1, ENTER), (29, 1, 1, LEAVE)]
    assert stumbles(rows) == {}
    assert held(rows) == {(0, 1), (0, 11)}
    assert stumbles([]) == {} and held([]) == set()


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([(9, 0, 1, ENTER), (19, 0, 1, ENTER)], {TWICE: [1]}),
        ([(9, 0, 1, LEAVE)], {NOT_HELD: [0]}),
        ([(9, 0, 1, ENTER), (19, 0, 1, LEAVE), (29, 0, 1, LEAVE)], {NOT_HELD: [2]}),
        ([(19, 0, 1, LEAVE), (9, 0, 1, ENTER)], {BACK: [1], NOT_HELD: [0]}),  # in balance all the same
        ([(9, 0, 1, ENTER), (9, 0, 1, LEAVE)], {MIXED: [1]}),
        ([(9, 0, 1, ENTER), (19, 0, 12, ENTER), (19, 0, 1, LEAVE)], {MIXED: [2]}),
        ([(9, 0, 1, ENTER), (19, 0, 12, ENTER), (12, 0, 12, MATCH), (19, 0, 1, LEAVE)], {MIXED: [3]}),
        ([(19, 0, 12, ENTER), (9, 0, 1, ENTER)], {BACK: [1]}),
        ([(19, 0, 12, ENTER), (9, 1, 1, ENTER)], {}),  # two ids have nothing to do with each other
        ([(12, 0, 12, MATCH), (10, 0, 10, MATCH)], {}),  # one boundary: bolts that share one find them in any order
        ([(12, 0, 12, MATCH), (9, 0, 9, MATCH)], {BACK: [1]}),
        ([(99, 0, 12, ENTER), (2**62, 0, 1, ENTER)], {}),  # beyond the stream: not a matter of order
    ],
)
def test_follow_names_the_rows_that_are_wrong_where_they_stand(rows, found):
    assert stumbles(rows) == found


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        # id 0 changes hands at seq 15; the first one's leaves are of boundary 19, as are the enters of the other
        ([(9, 0, 1, ENTER), (19, 0, 1, LEAVE), (19, 0, 16, ENTER)], {}),
        ([(9, 0, 1, ENTER), (19, 0, 16, ENTER), (19, 0, 1, LEAVE)], {MIXED: [2], BEHIND: [2]}),
        ([(9, 0, 1, ENTER), (19, 0, 1, LEAVE), (16, 0, 16, MATCH)], {}),
        ([(9, 0, 1, ENTER), (16, 0, 16, MATCH), (19, 0, 1, LEAVE)], {BEHIND: [2]}),
        ([(14, 0, 14, MATCH), (15, 0, 15, MATCH), (19, 0, 3, ENTER)], {}),
        ([(15, 0, 15, MATCH), (14, 0, 14, MATCH)], {BEHIND: [1]}),
        ([(17, 0, 17, MATCH), (15, 0, 15, MATCH)], {}),
        ([(14, 1, 14, MATCH), (17, 0, 17, MATCH), (3, 1, 3, MATCH), (14, 0, 14, MATCH)], {BACK: [2], BEHIND: [3]}),
        # a third one lives from seq 25 on: its boundary is 29, at which the second leaves
        ([(19, 0, 16, ENTER), (29, 0, 16, LEAVE), (29, 0, 16, ENTER)], {}),
        ([(19, 0, 16, ENTER), (26, 0, 26, MATCH), (29, 0, 16, LEAVE)], {BEHIND: [2]}),
        # beyond the stream nobody comes after the third
        ([(2**62, 0, 1, ENTER), (39, 0, 31, ENTER)], {BACK: [1]}),
    ],
)
def test_follow_a_replaced_subscription_comes_before_its_successor(rows, found):
    assert stumbles(rows, who=(0, 1, 0, 0, 1, 1), at=(0, 0, 15, 25, 2**61, 2**61 + 1)) == found


def test_follow_subscriptions_that_the_stream_does_not_reach_change_nothing():
    rows = [(17, 1, 17, MATCH), (16, 1, 16, MATCH), (15, 1, 15, MATCH), (17, 0, 17, MATCH), (16, 0, 16, MATCH)]
    for at in range(40, 200):
        assert stumbles(rows, who=(0, 0, 1, 1), at=(0, at, 0, 15)) == {}


def test_follow_agrees_with_a_subscriber_who_goes_row_by_row():
    rng = np.random.default_rng(8)
    seen = set()
    for _ in range(300):
        n = int(rng.integers(0, 30))
        boundary = np.sort(rng.integers(0, 4, n)) if rng.random() < 0.7 else rng.integers(0, 4, n)
        rows = list(zip(ENDS[boundary].tolist(), *rng.integers(0, [3, 2, 3], (n, 3)).T.tolist(), strict=True))
        expected: dict[str, list[int]] = {}
        holds: set[tuple[int, int]] = set()
        last: dict[int, int] = {}
        entered: dict[int, int] = {}
        for place, (as_of, who, seq, change) in enumerate(rows):
            wrong = [BACK] * (as_of < last.get(who, -1))
            if change == ENTER:
                wrong += [TWICE] * ((who, seq) in holds)
                holds.add((who, seq))
                entered[who] = as_of
            elif change == LEAVE:
                wrong += [NOT_HELD] * ((who, seq) not in holds) + [MIXED] * (entered.get(who) == as_of)
                holds.discard((who, seq))
                entered.pop(who, None)
            last[who] = as_of
            for what in wrong:
                expected.setdefault(what, []).append(place)
        assert stumbles(rows, who=(0, 1, 2), at=(0, 0, 0)) == expected
        assert held(rows) == holds
        seen |= expected.keys()
    assert seen == {BACK, TWICE, NOT_HELD, MIXED}


# ------------------------------------------------------------------------------------------------ whole run folders


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of 30 ids, most of which change hands twice, from kind to kind."""
    base = tmp_path_factory.mktemp("order")
    etl = write_etl(base / "etl", random_rows(160, late_s=10))
    rng = np.random.default_rng(2)
    rows = []
    for number in range(30):
        lon, lat = rng.uniform(-90.0, 90.0), rng.uniform(-50.0, 50.0)
        for at in (0, *sorted(rng.choice(np.arange(20, 160), 2, replace=False).tolist())):
            row = {"subscription_id": f"id {number}", "keywords": ["w9", "w10", "w11"], "at": at}
            if rng.random() < 0.7:
                row |= {"kind": "topk", "lon": lon, "lat": lat, "k": 3, "alpha": float(rng.random())}
            else:
                region = [lon - 90.0, lat - 40.0, lon + 90.0, lat + 40.0]
                row |= {"kind": "boolean", "match": "any", "region": region}
            rows.append(row)
    file = base / "subscriptions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    running.run(
        RunConfig(messages=etl, subscriptions=(file,), out=base / "run", window="count:50", batch=10, executor="local")
    )
    return base / "run"


def verify_with(finished: Path, place: Path, rows: list[dict], files: int = 1) -> VerifyReport:
    """The verdict on a copy of the run with these updates instead, in so many files."""
    shutil.copytree(finished, place, ignore=shutil.ignore_patterns("updates", "updates.list"))
    (place / "updates").mkdir()
    size = -(-len(rows) // files)
    for part in range(files):
        table = pa.Table.from_pylist(rows[part * size : part * size + size], UPDATE_SCHEMA)
        pq.write_table(table, place / "updates" / f"part-{part:05d}.parquet")
    return verify_run(place)


def updates_of(finished: Path) -> list[dict]:
    return [row for path in sorted((finished / "updates").iterdir()) for row in pq.read_table(path).to_pylist()]


def test_verify_order_matters_within_an_id_alone(finished, tmp_path):
    rows = updates_of(finished)
    assert min(sum(row["change"] == change for row in rows) for change in ("match", "enter", "leave")) > 100
    assert verify_with(finished, tmp_path / "several", rows, files=5).exact
    assert verify_with(finished, tmp_path / "by id", sorted(rows, key=lambda row: row["subscription_id"])).exact


def reverse(rows):
    rows.reverse()


def by_message(rows):
    rows.sort(key=lambda row: row["seq"])


def second_half_first(rows):
    rows[:] = rows[len(rows) // 2 :] + rows[: len(rows) // 2]


def enters_first(rows):
    rows.sort(key=lambda row: (row["as_of"], row["change"]))


def matches_first(rows):
    rows.sort(key=lambda row: row["change"] != "match")


@pytest.mark.parametrize(
    ("disorder", "found"),
    [
        (reverse, {BACK, BEHIND, MIXED, NOT_HELD}),
        (by_message, {BACK, BEHIND}),
        (second_half_first, {BACK, BEHIND, NOT_HELD}),
        (enters_first, {MIXED, BEHIND}),
        (matches_first, {BACK, BEHIND}),
    ],
)
def test_verify_right_updates_in_a_wrong_order_are_found_out(finished, tmp_path, disorder, found):
    rows = updates_of(finished)
    disorder(rows)
    report = verify_with(finished, tmp_path / "run", rows, files=2)
    assert not report.exact
    assert not any((*report.missing.values(), *report.extra.values(), report.missing_results, report.extra_results))
    told = str(report.render())
    assert {name for name in (BACK, BEHIND, MIXED, TWICE, NOT_HELD) if name in told} >= found
    assert "NOT EXACT" in told and "; the first: as of " in told


def test_verify_one_leave_told_after_the_enter_of_the_successor_is_found_out(finished, tmp_path):
    """As a predecessor that is told late would have it: the subscriber loses a message that the successor holds."""
    rows = updates_of(finished)
    for place, left in enumerate(rows):
        same = [k for k in range(place + 1, len(rows)) if rows[k]["subscription_id"] == left["subscription_id"]]
        again = [k for k in same if rows[k]["change"] == "enter" and rows[k]["seq"] == left["seq"]]
        if left["change"] == "leave" and again and rows[again[0]]["as_of"] == left["as_of"]:
            break
    else:
        pytest.fail("no message goes over from a subscription to its successor")
    rows.insert(again[0], rows.pop(place))
    report = verify_with(finished, tmp_path / "run", rows)
    assert [fault.split(";")[0] for fault in report.faults[-2:]] == [
        "1 updates enter a message that is in the result already",
        "1 updates leave a message that is not in the result",
    ]
    assert not any((*report.missing.values(), *report.extra.values()))
