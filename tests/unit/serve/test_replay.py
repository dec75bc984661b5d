"""`skyray show --page`: what a finished run answers as of any of its messages, and that it takes nothing."""

from urllib.parse import quote

import pytest

from gateway.runs.reader import RunReader
from matching.kinds import KINDS
from spouts.subscriptions import NEVER
from tests.support.processes import Command
from tests.support.serving import Replayed, position
from tests.support.small_runs import MESSAGES, small_run

LAST = MESSAGES - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="module")
def get(folder):
    with Replayed(folder) as server:
        yield lambda path, method="GET", body=None: server.call(method, path, body)
        server.process.terminate()
        code, _, said = server.finish(20)
        assert code == 143, said


@pytest.fixture(scope="module")
def run(folder):
    return RunReader(folder)


def updates_of(answer):
    *rows, progress = answer.lines
    return rows, progress["progress"]


def test_updates_are_those_of_the_run_in_pages_that_follow_one_another(get, run):
    key = ("subscription_id", "seq", "as_of", "change")
    wanted = sorted(tuple(row[name] for name in key) for row in run.updates().to_pylist())
    rows, progress = updates_of(get("/v1/updates?limit=100000"))
    assert sorted(tuple(row[name] for name in key) for row in rows) == wanted and len(wanted) > 300
    assert [position(row["id"]) for row in rows] == sorted({position(row["id"]) for row in rows})
    assert progress["through"] == LAST and all(row["text"] for row in rows)
    pages, since, through = [], "begin", -1
    while through < LAST:
        page, progress = updates_of(get(f"/v1/updates?since={since}&poll=1&limit=97"))
        assert len(page) <= 97 and progress["through"] >= through
        pages, since, through = pages + page, progress["id"], progress["through"]
    assert pages == rows
    events = get("/v1/updates?since=begin&limit=1&subscription=mine")
    assert events.lines[0]["subscription_id"] == "mine"


def test_updates_as_of_a_message_are_those_up_to_it_and_the_newest_are_the_last_of_them(get):
    rows, _ = updates_of(get("/v1/updates?limit=100000"))
    for seq in (0, 24, 60, 61, 130):
        there = [row for row in rows if row["as_of"] <= seq]
        assert updates_of(get(f"/v1/updates?through={seq}&limit=100000"))[0] == there
        assert updates_of(get(f"/v1/updates?through={seq}&newest=1&limit=20"))[0] == there[-20:]
        assert updates_of(get(f"/v1/updates?since={seq}&limit=100000"))[0] == [
            row for row in rows if row["as_of"] > seq
        ]
    kind = [row for row in rows if row["subscription_id"].startswith("knn-")]
    assert updates_of(get("/v1/updates?kind=knn&limit=100000"))[0] == kind != []


def test_results_at_the_end_are_those_of_the_run(get, run):
    found = {}
    for row in run.results().to_pylist():
        found.setdefault(row["subscription_id"], []).append((row["rank"], row["message_id"], row["seq"], row["score"]))
    standing = 0
    for name, rows in found.items():
        answer = get(f"/v1/subscriptions/{name}/results").json
        shown = [(row["rank"], row["message_id"], row["seq"], row["score"]) for row in answer["results"]]
        if KINDS.named(answer["kind"]).standing:
            assert shown == rows, name
            standing += 1
        else:
            assert shown == rows[::-1][:100], name
    assert standing > 5


@pytest.mark.parametrize("as_of", [24, 74, 100, 137, 199])
def test_results_as_of_a_message_have_what_explain_finds_in_them_and_nothing_else(get, run, as_of):
    """Of every kind; the oracle's rules decide."""
    inside = {True: 0, False: 0}
    names = [name for name in dict.fromkeys(run.changes.names.strings()) if name.endswith(("-0", "-1", "mine"))]
    for name in names:
        rows = get(f"/v1/subscriptions/{name}/results?as_of={as_of}").json["results"]
        seqs = {row["seq"] for row in rows}
        for seq in [*sorted(seqs)[:4], 3, 50, 99, 110, 198]:
            found = get(f"/v1/explain?subscription={name}&message=seq:{seq}&as_of={as_of}").json
            assert found["in_result"] == (seq in seqs), (name, seq, found)
            inside[found["in_result"]] += 1
            assert all(update["as_of"] <= as_of for update in found["updates"])
    assert min(inside.values()) > 5, inside


def test_subscriptions_as_of_a_message_are_the_active_ones_page_by_page(get, run):
    changes = run.changes
    for as_of in (0, 99, 100, LAST):
        spans = zip(changes.names.strings(), changes.table.at.tolist(), changes.end.tolist(), strict=True)
        wanted = [name for name, at, end in spans if at <= as_of < end]
        found, after = [], -1
        while after is not None:
            page = get(f"/v1/subscriptions?as_of={as_of}&limit=7&after={after}").json
            found += [row["subscription_id"] for row in page["subscriptions"]]
            after = page["after"]
        assert found == wanted and len(found) == len(set(found))
    assert any(end < NEVER for end in changes.end), "some end"
    assert [row["name"] for row in get("/v1/subscriptions?prefix=mine").json["subscriptions"]] == ["Ana"]
    some = get(f"/v1/subscriptions?id={quote(wanted[3])}&id={quote(wanted[1])}&id=none").json["subscriptions"]
    assert [row["subscription_id"] for row in some] == [wanted[1], wanted[3]]
    replaced = get("/v1/subscriptions?kind=topk&limit=1&as_of=0").json["subscriptions"][0]["subscription_id"]
    later = get(f"/v1/subscriptions/{replaced}").json
    assert later["name"] == "again" and "name" not in get(f"/v1/subscriptions/{replaced}?as_of=99").json


def test_messages_are_the_last_ones_up_to_a_message(get, run):
    rows = get("/v1/messages?through=50&limit=10").json["messages"]
    assert [row["seq"] for row in rows][-1] <= 50 and len(rows) <= 10 and all(row["text"] for row in rows)
    texts = run.messages([row["seq"] for row in rows])
    assert [row["text"] for row in rows] == [texts[row["seq"]].text for row in rows]
    assert all(row["seq"] > 48 for row in get("/v1/messages?after=48&through=50").json["messages"])


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/messages"), ("PUT", "/v1/subscriptions/mine"), ("DELETE", "/v1/subscriptions/mine"),
     ("POST", "/v1/match"), ("PATCH", "/v1/stream")],
)  # fmt: skip
def test_writing_is_refused_with_a_reason(get, method, path):
    answer = get(path, method, {})
    assert (answer.status, answer.json["reason"], answer.headers["allow"]) == (405, "read_only", "GET, HEAD")
    assert "skyray serve --out" in answer.json["do"]


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/v1/subscriptions/none", 404, "unknown_subscription"),
        ("/v1/subscriptions/wrong/results", 404, "unknown_subscription"),
        ("/v1/explain?subscription=mine&message=none", 404, "unknown_message"),
        ("/v1/explain?subscription=mine&message=seq:1&as_of=3", 422, "no_boundary"),
        ("/v1/updates?since=x", 422, "bad_position"),
        ("/v1/updates?through=-2", 422, "bad_parameter"),
    ],
)
def test_what_cannot_be_answered_is_a_problem_with_a_reason(get, path, status, reason):
    answer = get(path)
    assert (answer.status, answer.json["reason"]) == (status, reason)


def test_facts_and_figures_of_the_run(get, folder):
    facts = get("/v1/stream").json
    assert facts["run"] | {"updates": 0} == {
        "folder": "run",
        "state": "finished",
        "last": LAST,
        "boundaries": 10,
        "updates": 0,
    }
    assert facts["kinds"] == list(KINDS.names)
    assert get("/health").json["messages"] == MESSAGES


@pytest.mark.parametrize(("folder", "code"), [("s3://none/run", 2), ("/none", 4)])
def test_a_folder_must_be_of_this_machine_and_be_one_of_a_run(folder, code):
    with Command(["show", folder, "--page", "--port", 0]) as command:
        found, _, said = command.finish(60)
        assert found == code, said
