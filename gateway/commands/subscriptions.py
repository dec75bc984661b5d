"""`skyray subscriptions generate`: subscriptions made from the words and places of real messages.

`gateway/commands/subscriptions.py` -> `gateway/generate.py` -> `matching/kind.py`, whose `Recipe` says what is drawn.
What is written is read by `run.py` beside this file.
"""

from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.options import Command, Group, Json, Late, example, of_signature
from gateway.terminal import Terminal
from matching.errors import ConfigError

app = typer.Typer(cls=Group, name="subscriptions", help="Subscription files.", no_args_is_help=True)


def _recipe() -> Iterator[Parameter]:
    from gateway.generate import generate_subscriptions

    return of_signature(generate_subscriptions)


@app.command(
    cls=Command,
    epilog=example("skyray subscriptions generate --messages etl --kind topk --count 20000 --out topk.jsonl"),
)
def generate(
    messages: Annotated[Path, typer.Option(help="Output folder of `skyray etl`.")],
    kind: Annotated[str, typer.Option(help="{kinds}.")],
    count: Annotated[int, typer.Option(min=1, help="How many.")],
    out: Annotated[Path, typer.Option(help="JSON Lines file to write.")],
    recipe: Annotated[dict[str, Any], Late(_recipe)],
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same bytes.")] = 0,
    json: Json = False,
) -> int:
    """Make subscriptions from the words and points of real messages, by the papers' recipes."""
    from matching.kinds import KINDS

    if kind not in KINDS:
        raise ConfigError(f"--kind {kind}: choose one of {', '.join(KINDS.names)}")
    from gateway.generate import generate_subscriptions

    payload = generate_subscriptions(messages, kind, count, seed, out, **recipe)
    Terminal(json).answer(payload, lambda shown: shown.print(f"{count:,} {kind} subscriptions written to {out}"))
    return 0
