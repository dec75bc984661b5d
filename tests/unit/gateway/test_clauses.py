"""Explanations name the clause of a query that fails, wherever it stands, and where the message has its words."""

import pytest

import skyray

PLACE = {"lon": 1.0, "lat": 1.0}
TEXT = "rotes altes Fahrrad, fast neu; altes Schloss"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ('altes "rotes fahrrad"', '"rotes fahrrad" is not there: rotes at 1, fahrrad at 3'),
        ('altes "altes rotes"~1', '"altes rotes"~1 is not there: altes at 2, 6, rotes at 1'),
        ('fahrrad ("neu fast" OR billig)', '("neu fast" OR billig), of which one is needed ("neu fast" is not there: '
         "neu at 5, fast at 4; billig is not there)"),
        ('fahrrad -(damen OR "altes schloss")', '"altes schloss" is there, and is excluded: altes at 2, 6, schloss at'),
        ("fahrrad -(fast neu)", "fast neu is there, and is excluded"),
        ('(fahrrad "altes neu" kette*) OR (neu -fast)', 'of which one is needed ("altes neu" is not there: altes at 2, '
         "6, neu at 5; kette* is not there; fast is there, and is excluded)"),
        ({"all": ["neu", {"where": {"price": {"lte": 5}}}]}, '{"price": {"lte": 5}} does not hold'),
        ("kette* neu", "query: kette* is not there"),
        ('neu billig "neu fast"', 'billig is not there; "neu fast" is not there: neu at 5, fast at 4'),
    ],
)  # fmt: skip
def test_explanation_names_the_clauses_that_fail(query, why):
    engine = skyray.Engine(attributes=["price:number"])
    engine.subscribe(subscription_id="s", kind="boolean", region=[0, 0, 2, 2], query=query)
    assert engine.publish({"id": "m", "text": TEXT, "price": 9, **PLACE}) == []
    answer = engine.explain("s", "m")
    assert answer["reason"] == "query" and why in answer["why"], answer["why"]
