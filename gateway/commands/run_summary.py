"""The end of a run for people: its figures, five of its results, what was rejected and why, and where everything is."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.runs.reader import RunReader
from gateway.runs.showing import flat_results, result_lists
from gateway.shell.progress import headline, print_summary
from gateway.shell.terminal import cell, shortened, table
from topology.core.places import place

#: How many results end a run.
SHOWN = 5


def print_ending(out: Any, report: Mapping[str, Any]) -> None:
    """Print the report of `topology.running.run`."""
    print_summary(out, report)
    of_subscriptions = report.get("spouts", {}).get("subscriptions", {})
    rejected = of_subscriptions.get("rejected_by_reason", {})
    folder = place(report["settings"]["out"])
    if report["settings"].get("sink") != "count":
        rows = _some_results(folder)
        if rows:
            out.print(table(("subscription", "words found", "text", "place"), rows, title="Some of the results"))
    if rejected:
        out.print(f"rejected subscriptions: {cell(rejected)}; {cell(folder / 'rejected.jsonl')} has the rows")
        print_rejected(out, of_subscriptions.get("first_rejected", ()))
    out.print(f"everything is in {cell(folder)}; see skyray show {cell(folder)}")


def print_rejected(out: Any, first: Sequence[Mapping[str, Any]]) -> None:
    """Print refused rows of subscriptions (`spouts.subscriptions.SubscriptionChanges.first_rejected`), a line each."""
    for one in first:
        out.print(f"    {cell(in_words(one))}", markup=False, soft_wrap=True)


def in_words(rejected: Mapping[str, Any]) -> str:
    """One of `spouts.subscriptions.SubscriptionChanges.first_rejected` as a line of text."""
    name = f", {rejected['subscription_id']}" if rejected["subscription_id"] else ""
    return f"{rejected['file']}:{rejected['line']}{name}: {rejected['what']}"


def nothing_usable(report: Mapping[str, Any]) -> str | None:
    """Why a run had nothing to match, if all subscriptions or all messages were rejected."""
    of_subscriptions = report.get("spouts", {}).get("subscriptions", {})
    of_messages = report.get("spouts", {}).get("messages", {})
    folder = report["settings"]["out"]
    if headline(report)["subscriptions"] == 0 and of_subscriptions.get("rejected"):
        reasons = cell(of_subscriptions.get("rejected_by_reason", {}))
        first = [cell(in_words(one)) for one in of_subscriptions.get("first_rejected", ())[:1]]
        return (
            f"all {of_subscriptions['rejected']:,} subscriptions were rejected ({reasons}); "
            f"see {folder}/rejected.jsonl" + "".join(f", which begins with {one}" for one in first)
        )
    set_aside = {name: of_messages.get(name, 0) for name in ("outside_world", "ahead")}
    if of_messages.get("messages") and sum(set_aside.values()) >= of_messages["messages"]:
        reasons = cell({name: count for name, count in set_aside.items() if count})
        return (
            f"all {of_messages['messages']:,} messages were set aside ({reasons}); look at --world, stream.max_ahead "
            "and the times of the messages"
        )
    return None


def _some_results(folder: Any) -> list[list[Any]]:
    """Subscription, words, text and place of a few results of different subscriptions."""
    payload = result_lists(RunReader(folder), [], SHOWN)
    firsts = [one | {"results": one["results"][:1]} for one in payload["subscriptions"]]
    return [
        [row["subscription_id"], " ".join(row["words"]), shortened(row["text"]), f"{row['lon']:.2f} {row['lat']:.2f}"]
        for row in flat_results({"subscriptions": firsts})
        if "text" in row
    ]
