"""The workload `alerts`: what a service of alerts has, all kinds at once, in a folder.

    python -m benchmarks.workloads.alerts FOLDER [--subscriptions 1000000] [--messages-from ETL_FOLDER] [--seed 0]

Of 1,000,000 subscriptions 600,000 are saved searches with filters, 150,000 `topk`, 100,000 `decay`, 100,000 `knn` and
50,000 `skyline`; `MIX` says what each is like. Fewer have the same shares and a window in proportion, so that a message
makes as many updates of the windowed kinds. Messages are drawn of what `skyray etl` wrote (`--messages-from`), else of
made-up ones. Decaying and nearest results begin with the stream and have taken its history, a message for four
subscriptions, when the first message counts; the others begin near its end, over a full window.

The folder is for `skyray run` (`etl`, `subscriptions/*.jsonl`) and for `benchmarks.headline --workload FOLDER`.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from benchmarks import command
from benchmarks.command import Tell
from benchmarks.workloads import stream
from benchmarks.workloads.folder import FILLING, SETTINGS, Workload
from gateway.subscriptions.generate import generate_subscriptions
from matching.errors import ConfigError
from matching.half_life import HALF_LIFE_S

#: Messages a second by event time; messages of the window and of the history for each subscription.
RATE, WINDOW_SHARE, HISTORY_SHARE = 10_000.0, 0.1, 0.25
#: Fewest messages of a window.
_SMALLEST_WINDOW = 1_000


class Part(NamedTuple):
    """Subscriptions of one kind: their share of all, and options of `skyray subscriptions generate`."""

    share: float
    options: dict[str, Any]

    def in_words(self) -> str:
        """The options in words."""
        given = dict(self.options)
        words = [f"{given.pop('min_keywords')} to {given.pop('max_keywords')} keywords"]
        words += [f"k {given.pop('k')}"] if "k" in given else []
        names = {
            "region_share": "region to {:.2%} of the world's side", "where_share": "{:.0%} with conditions",
            "circle_share": "{:.0%} circles", "polygon_share": "{:.0%} octagons", "not_share": "{:.0%} exclude a word",
        }  # fmt: skip
        return ", ".join([*words, *(names[name].format(value) for name, value in given.items())])


#: The mix; `topk` and the like have their k and alpha, uniform, by the recipes of their kinds unless said here.
MIX = {
    "boolean": Part(
        0.60,
        {
            "min_keywords": 1, "max_keywords": 2, "region_share": 0.0008, "circle_share": 0.4, "polygon_share": 0.1,
            "where_share": 0.7, "not_share": 0.05,
        },
    ),
    "topk": Part(0.15, {"min_keywords": 1, "max_keywords": 4, "k": 4, "where_share": 0.1}),
    "decay": Part(0.10, {"min_keywords": 1, "max_keywords": 4, "k": 5, "where_share": 0.1}),
    "knn": Part(0.10, {"min_keywords": 1, "max_keywords": 4, "k": 5, "where_share": 0.1}),
    "skyline": Part(0.05, {"min_keywords": 1, "max_keywords": 3, "region_share": 0.05}),
}  # fmt: skip
#: Kinds whose results take the whole history; the others begin so many batches before its end.
_FROM_THE_START, _BATCHES_BEFORE = ("decay", "knn"), 4


def make(
    folder: Path, subscriptions: int, seed: int = 0, messages_from: str = "", messages: int = 1_000_000,
    tell: Tell = command.say,
) -> dict[str, Any]:  # fmt: skip
    """Write the workload; returns its settings.

    Parameters
    ----------
    folder : Path
        Made; it must not exist.
    subscriptions : int
        Of all kinds, at least 1,000.
    seed : int
    messages_from : str
        An ETL folder, else messages are made up.
    messages : int
        Behind the history.

    Raises
    ------
    ConfigError
        If the folder exists, or for too few subscriptions.
    InputError
        If the ETL folder cannot be read.
    """
    if folder.exists():
        raise ConfigError(f"{folder}: is there already; name another folder, or remove it")
    if subscriptions < 1_000:
        raise ConfigError(f"{subscriptions} subscriptions: the mix needs 1,000 at least")
    hidden = folder.with_name(f".{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    base = stream.of_etl(messages_from) if messages_from else stream.made_up(seed)
    counts = {kind: round(part.share * subscriptions) for kind, part in MIX.items()}
    window = max(_SMALLEST_WINDOW, round(WINDOW_SHARE * subscriptions))
    history = max(round(HISTORY_SHARE * subscriptions), window + _BATCHES_BEFORE * FILLING)
    history = -(-history // FILLING) * FILLING
    tell(f"{history + messages:,} messages, of {base.places.shape[1]:,} {messages_from and 'real' or 'made-up'} ones")
    stream.write_stream(base, hidden / "etl", history + messages, seed, RATE)
    sample = hidden / "sample"
    stream.write_sample(base, sample, seed)
    (hidden / "subscriptions").mkdir()
    for number, (kind, part) in enumerate(MIX.items()):
        tell(f"{counts[kind]:,} {kind} subscriptions")
        out = hidden / "subscriptions" / f"{number}-{kind}.jsonl"
        generate_subscriptions(sample, kind, counts[kind], seed, out, **part.options)
        if kind not in _FROM_THE_START:
            _begin_at(out, history - _BATCHES_BEFORE * FILLING)
    shutil.rmtree(sample)
    settings = {
        "name": "alerts", "seed": seed, "messages_from": "files" if messages_from else "made up",
        "window": f"count:{window}", "decay_half_life": HALF_LIFE_S, "history": history, "subscriptions": counts,
    }  # fmt: skip
    (hidden / SETTINGS).write_text(json.dumps(settings, indent=1))
    hidden.rename(folder)
    return settings


def table(settings: dict[str, Any]) -> str:
    """What the workload is, in one table."""
    rows = [("kind", "subscriptions", "each has")]
    rows += [(kind, f"{settings['subscriptions'][kind]:,}", part.in_words()) for kind, part in MIX.items()]
    lines = [f"{kind:8}  {count:>13}  {words}" for kind, count, words in rows]
    about = (
        f"window {settings['window']}, {RATE:,.0f} messages/s by event time, half-life "
        f"{settings['decay_half_life']:,.0f} s, history {settings['history']:,} messages, seed {settings['seed']}"
    )
    return "\n".join([*lines, about])


def _begin_at(path: Path, seq: int) -> None:
    """Let all subscriptions of a file begin before a message."""
    begun = f',"at":{seq}}}\n'.encode()
    hidden = path.with_name(f".{path.name}")
    with path.open("rb") as before, hidden.open("wb") as file:
        file.writelines(line.rstrip(b"\n")[:-1] + begun for line in before)
    hidden.replace(path)


def alerts(
    folder: Annotated[str, "folder to make"],
    subscriptions: Annotated[int, "of all kinds"] = 1_000_000,
    messages_from: Annotated[str, "folder of `skyray etl` whose messages are drawn again; made-up ones without"] = "",
    messages: Annotated[int, "messages behind the history"] = 1_000_000,
    seed: Annotated[int, "of all that is drawn"] = 0,
    tell: Tell = command.say,
) -> dict[str, Any]:
    """Make the folder, let the history pass, and print the table."""
    settings = make(Path(folder), subscriptions, seed, messages_from, messages, tell)
    tell(table(settings))
    Workload(folder).fill(tell)
    return settings


if __name__ == "__main__":
    raise SystemExit(command.main(alerts, compares=False))
