"""`skyray explain`: why a message is in a subscription's result, or is not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal, cell, say_checkpoint, table

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray explain runs/first s1 tweet-17"))
def explain(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, in any state.")],
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its id.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="Its id, or seq:N.")],
    json: Json = False,
) -> int:
    """Say why a message is in the result of a subscription, or why not: words, score, and better messages.

    As of the last boundary with published updates, or of a live stream that runs as of its last checkpoint; rules and
    scores are the oracle's.
    """
    from gateway.runs.explaining import explain as explain_run

    terminal = Terminal(json)
    with terminal.steps("explain"):
        answer = explain_run(run_dir, subscription, message)
    say_checkpoint(answer.get("checkpoint"))
    terminal.answer(answer, lambda out: print_explanation(out, answer))
    return 0


def print_explanation(out: Any, answer: Mapping[str, Any]) -> None:
    """The answer for people."""
    owner, message = answer["subscription"], answer["message"]
    taste = [f"{name} {owner[name]}" for name in ("k", "alpha") if owner[name] is not None]
    place = f"{message['lon']:g} {message['lat']:g}, number {message['seq']:,}"
    out.print(f"{cell(owner['subscription_id'])}: {owner['kind']} of {cell(' '.join(owner['words']))}", *taste)
    out.print(f"{cell(message['message_id'])}: {cell(message['text'])} ({place})")
    out.print(f"\n{'IN THE RESULT' if answer['in_result'] else 'NOT IN THE RESULT'} as of message {answer['as_of']:,}: "
              f"{cell(answer['why'])}\n")  # fmt: skip
    rows: list[tuple[Any, Any]] = [("words in common", ", ".join(answer["words"]) or None)]
    rows.append(("words that are missing", ", ".join(answer["missing"]) or None))
    rows.append(("kilometres", None if answer["distance_km"] is None else f"{answer['distance_km']:,.1f}"))
    rows += [(f"  {word}", f"{value:.6g}") for word, value in answer["by_word"].items()]
    rows += [(name, f"{value:.6g}") for name, value in answer["parts"].items()]
    if answer["score"] is not None:
        rows += [(name, f"{answer[name]:.6g}") for name in ("score", "threshold") if answer[name] is not None]
    out.print(table(("part", "value"), [row for row in rows if row[1] is not None]))
    if answer["rivals"]:
        shown = [[one["message_id"], f"{one['score']:.6g}", one["text_score"], one["text"]] for one in answer["rivals"]]
        out.print(table(("before it", "score", "text score", "text"), shown, right=(1, 2)))
        if answer["rivals_in_all"] > len(shown):
            out.print(f"and {answer['rivals_in_all'] - len(shown):,} more")
    for update in answer["updates"]:
        out.print(f"update as of {update['as_of']:,}: {update['change']}")
