"""`skyray topology show`: what a run would consist of, with the options of the run."""

from pathlib import Path
from typing import Any

import numpy as np
import typer

from gateway.commands.run import QUIET, SHOWN, Settings
from gateway.commands.stream_options import READ
from gateway.shell.groups import Group
from gateway.shell.options import Command, Json, example, shares
from gateway.shell.terminal import Terminal
from matching.kinds import KINDS
from matching.space import EARTH, Space
from matching.window import Window
from topology.settings import CREDITS, RunConfig, load_config
from topology.sizing import chosen

#: Meaning of the symbols and words in a plan.
LEGEND = {
    "clock": "numbers messages and batches; all else goes by these",
    "x N": "number of tasks",
    "-->": "a stream of payloads; it ends when its sender does",
    "~~>": "feedback: requests and answers, which may go against the stream",
    "direct": "each payload goes to the task that its sender names",
    "all": "to every task",
    "shuffle": "to one task after the other",
    "fields": "to the task that a hash of its key names",
}

app = typer.Typer(cls=Group, name="topology", help="What a run consists of.", no_args_is_help=True)


@app.command(cls=Command, epilog=example("skyray topology show --query-bolts 4"))
@shares(*READ, shown=SHOWN, quiet=QUIET)
def show(settings: Settings, json: Json = False) -> int:
    """Print the components, tasks and streams that a run would start.

    With messages and subscriptions it is the plan of `skyray run` with these options, else the same without data.
    """
    from topology.wiring import build_plan

    stand_ins = {"messages": Path("MESSAGES"), "subscriptions": [Path("SUBSCRIPTIONS")], "out": Path("OUT")}
    missing = {name: value for name, value in stand_ins.items() if name not in settings}
    run_config = load_config(settings | missing)
    plan = _plan_without_data(run_config) if missing.keys() & {"messages", "subscriptions"} else build_plan(run_config)
    numbers = chosen(run_config, {part.name: part.tasks for part in plan.components})
    lines = [plan.render(), legend(plan)]
    if numbers:
        listed = ", ".join(f"{number} {name}" for name, number in numbers.items())
        lines.append(f"chosen by kinds, router and query bolts: {listed}")
    Terminal(json).answer(
        plan.describe() | {"chosen": numbers}, lambda out: out.print("\n\n".join(lines), markup=False)
    )
    return 0


def legend(plan: Any) -> str:
    """Lines that say what stands in `plan.render()`."""
    edges = plan.edges
    used = {edge.grouping for edge in edges} | {"~~>" if edge.feedback else "-->" for edge in edges} | {"x N"}
    used |= {"clock" for part in plan.components if part.clock}
    said = [f"{symbol:<{max(map(len, LEGEND))}}  {meaning}" for symbol, meaning in LEGEND.items() if symbol in used]
    return "\n".join(said)


def _plan_without_data(config: RunConfig) -> Any:
    """The components and edges of a run whose data is not there yet; nothing is read."""
    from bolts.delivery import DeliveryBolt
    from matching.vocabulary import Vocabulary
    from spouts.cuts import Cuts
    from spouts.parquet import ParquetSpout
    from spouts.subscriptions import SubscriptionSpout
    from topology.wiring import bolts_beside, router_of, wire

    space, window, nowhere = Space(*EARTH), Window.parse(config.window), np.zeros(0)
    router = router_of(config, space, load=(nowhere, nowhere))
    return wire(
        ParquetSpout(config.messages, window, space, Cuts.parse(config.batch, window)),
        SubscriptionSpout(config.subscriptions, Vocabulary([], [], [], [], 0), space),
        router,
        space,
        window,
        DeliveryBolt(str(config.out), window, config.credits or CREDITS),
        engines=config.engine,
        window_indexes=config.window_index,
        **bolts_beside(config, router, KINDS.run),
        credits=config.credits or CREDITS,
    )
