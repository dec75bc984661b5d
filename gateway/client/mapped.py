"""The requests behind `Client.map` and `AsyncClient.map`: subscriptions, page by page, and the result of each."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.client import requests
from gateway.client.errors import NotFound
from gateway.client.flows import Patience, answered, pages
from gateway.client.transport import Link

#: Subscriptions, and messages, that a map draws, and results that are read for it.
MOST, MOST_RESULTS = 50_000, 1_000


async def mapped(
    link: Link, ids: Sequence[str], filters: Mapping[str, Any], most: int, most_results: int, patience: Patience
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Subscriptions of these ids or filters, the messages in their results, a request for each, and what is left out.

    A subscription that has ended in between has no messages.
    """
    rows, more = await (_of_ids(link, ids, most, patience) if ids else _of_filters(link, filters, most, patience))
    left_out = [f"the first {most:,} subscriptions are drawn, and there are more: name some, or raise most="] * more
    messages: list[dict[str, Any]] = []
    read = 0
    for row in rows[:most_results]:
        if len(messages) >= most:
            break
        messages += await _result_of(link, row, patience)
        read += 1
    if read < len(rows):
        by = "most=" if len(messages) >= most else "most_results="
        left_out.append(f"results of the first {read:,} of {len(rows):,} subscriptions are drawn: raise {by}")
    if len(messages) > most:
        left_out.append(f"{most:,} of the {len(messages):,} messages of these are drawn: raise most=")
    return rows, messages[:most], left_out


async def _of_ids(link: Link, ids: Sequence[str], most: int, patience: Patience) -> tuple[list[dict[str, Any]], bool]:
    """Columns of at most `most` subscriptions with these ids, and whether there are more."""
    rows: list[dict[str, Any]] = []
    names = list(dict.fromkeys(ids))
    for name in names[:most]:
        rows.append((await answered(link, requests.subscription(name), patience)).columns)
    return rows, len(names) > most


async def _of_filters(
    link: Link, filters: Mapping[str, Any], most: int, patience: Patience
) -> tuple[list[dict[str, Any]], bool]:
    """Columns of at most `most` subscriptions that pass the filters, and whether there are more."""
    rows: list[dict[str, Any]] = []
    async for columns in pages(link, filters, patience):
        rows.append(columns)
        if len(rows) > most:
            break
    return rows[:most], len(rows) > most


async def _result_of(link: Link, row: Mapping[str, Any], patience: Patience) -> list[dict[str, Any]]:
    try:
        found = await answered(link, requests.results(row["subscription_id"]), patience)
    except NotFound:
        return []
    of = {"subscription_id": found.subscription_id, "kind": found.kind}
    return [of | msgspec.structs.asdict(one) for one in found.results]
