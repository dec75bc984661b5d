"""Quotes, brackets and `*` among keywords, which mean something in `query` alone: refused at every door."""

import pytest

import skyray
from matching.errors import InputError
from matching.kinds import KINDS
from matching.space import EARTH, Space
from matching.vocabulary import Vocabulary
from spouts.subscriptions import load_changes
from tests.support.row_files import write_rows

PLACE = {"kind": "topk", "lon": 1.0, "lat": 1.0, "k": 1, "alpha": 0.5}


@pytest.mark.parametrize("column", ["keywords", "not_keywords"])
@pytest.mark.parametrize("text", ['"rotes fahrrad"', "fahr*", "rot (damen)", "„rotes fahrrad“"])
def test_syntax_of_queries_in_keywords_is_refused_with_where_to_write_it(column, text):
    row = {"subscription_id": "s", "keywords": "rot", **PLACE}
    engine = skyray.Engine()
    for given in (text, ["rot", text]):
        with pytest.raises(InputError, match="write it in query") as refused:
            engine.subscribe(row | {column: given})
        fault = refused.value.fault  # pyright: ignore[reportAttributeAccessIssue]
        assert (refused.value.reason_code, fault.column, fault.value) == ("query_in_keywords", column, given)
    assert not engine.subscriptions
    assert engine.subscribe(row | {"query": text})


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_syntax_of_queries_in_keywords_of_a_file_is_a_bad_row_beside_good_ones(tmp_path, form):
    rows = [{"subscription_id": "a", "keywords": "rot", **PLACE}]
    rows += [{"subscription_id": "b", "keywords": "fahr* rot", **PLACE}, rows[0] | {"subscription_id": "c"}]
    path = tmp_path / f"asked.{form}"
    write_rows(path, rows)
    found = load_changes([path], Vocabulary.of_counts([{"rot": 1}]), Space(*EARTH), kinds=KINDS)
    assert found.names.strings() == ["a", "c"] and found.rejected_by_reason == {"query_in_keywords": 1}
    assert "keywords has *" in found.first_rejected[0]["what"]
