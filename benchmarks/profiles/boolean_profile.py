"""Write `docs/boolean-profile.md` from the results it talks about, so that its figures are those of the files.

`python -m benchmarks.profiles.boolean_profile`, after `benchmarks.profiles.memory_limits`,
`benchmarks.profiles.boolean_phases` and `skyray bench boolean` have been run anew and kept in `benchmarks/results/`.
The sentences are here; a test holds the page to them.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.profiles.boolean_phases import PHASES

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[2] / "docs" / "boolean-profile.md"
_SIZES = (1_000_000, 5_000_000)
_FINDS = {
    "look_up": "the block of each term",
    "find_cuts": "buckets of the cells, one a level in use",
    "find_runs": "the postings of those buckets",
    "walk": "postings whose box is met: one subtraction each",
    "verify": "second and further keywords, degrees",
    "hits": "numbers of the subscriptions, the returned arrays",
}
_LINES = {
    "table of terms, heads of blocks": "block_lines",
    "cuts of buckets": "cut_lines",
    "boxes": "box_lines",
    "links": "link_lines",
    "keywords beyond the second": "keyword_lines",
    "numbers of matches": "matches",
}
#: Sizes of `benchmarks.profiles.memory_limits` that are near those of the state, in MiB.
_NEAR = (64, 512)


def page(results: Path = RESULTS) -> str:
    """The page, from the files in this folder."""
    limits = _read(results / "memory-limits.json")
    small, large = (_read(results / f"boolean-phases-{size}.json") for size in _SIZES)
    beside = {size: _read(results / f"boolean-{size}.json")["results"] for size in _SIZES}
    near = {row["mib"]: row for row in limits["random"]}
    waits = [near[mib] for mib in _NEAR]
    both = (small, large)
    lines = [sum(report["per_message"][key] for key in _LINES.values()) for report in both]
    took = [report["match_ns"] / 1e3 for report in both]
    ways = {way: [n * row[f"{way}_ns"] / 1e3 for n, row in zip(lines, waits, strict=True)] for way in _WAYS}
    in_a_row = [n * 64 / 2**30 / limits["read_gib_per_s"] * 1e6 for n in lines]
    counts = [report["per_message"] for report in both]
    fast = {size: next(row for row in rows if row["engine"] == "cell_term") for size, rows in beside.items()}
    return _TEXT.format(
        phases="\n".join(_phase_row(name, both) for name in (*PHASES, "hits")),
        all=" | | ".join(f"{report['match_ns']:,.0f}" for report in both),
        lines="\n".join(
            f"| {name} | " + " | ".join(f"{per[key]:.0f}" for per in counts) + " |" for name, key in _LINES.items()
        ),
        all_lines=" | ".join(f"{n:.0f}" for n in lines),
        terms=small["workload"]["terms_per_message"],
        few=counts[0],
        many=counts[1],
        share=[f"{100 * per['matches'] / per['candidates']:.0f} %" for per in counts],
        price=[report["match_ns"] / report["per_message"]["matches"] for report in both],
        gib=limits["read_gib_per_s"],
        waits=waits,
        state=[report["state_mib"] for report in both],
        in_a_row=_pair(in_a_row),
        gathered=_pair(ways["gathered"]),
        branched=_pair(ways["branched"]),
        chased=_pair(ways["chased"]),
        took=_pair(took),
        times=[f"{t / way:.1f}" for t, way in zip(took, ways["gathered"], strict=True)],
        waiting=f"{min(way / t for t, way in zip(took, ways['chased'], strict=True)):.1f}",
        engines="\n".join(row for size, rows in beside.items() for row in _engine_rows(size, rows)),
        since="\n".join(
            f"| `{row['engine']}` | {row['messages_per_s']:,.0f} | {row['bytes_per_subscription']:.0f} | "
            f"{row['subscribe_per_s']:,.0f} |"
            for row in _read(results / f"boolean-{_SIZES[0]}-lfilter.json")["results"]
        ),
        coming=[fast[size]["subscribe_per_s"] for size in _SIZES],
        going=[fast[size]["unsubscribe_per_s"] for size in _SIZES],
    )


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _pair(values: list[float]) -> str:
    return " | ".join(f"{value:.1f}" for value in values)


def _phase_row(name: str, both: tuple[dict[str, Any], ...]) -> str:
    cells = (f"{report['phase_ns'][name]:,.0f} | {100 * report['phase_share'][name]:.0f}%" for report in both)
    return f"| `{name}` | {_FINDS[name]} | " + " | ".join(cells) + " |"


def _engine_rows(size: int, rows: list[dict[str, Any]]) -> list[str]:
    # the plain list is the simplest engine that is exact, and no opponent: beside it everything looks fast
    return [
        f"| {size:,} | `{row['engine']}` | {row['messages_per_s']:,.0f} | {row['bytes_per_subscription']:.0f} | "
        f"{size / row['build_s']:,.0f} |"
        for row in rows
        if row["engine"] != "inverted_list"
    ]


_WAYS = ("gathered", "branched", "chased")

_TEXT = """\
# Where the time of one message goes in `cell_term`

The default engine for `boolean` against what the memory of the machine allows: one core of a shared two-core machine,
synthetic workload (`benchmarks/workload.py`), processor time, medians. Every figure is from `benchmarks/results/`:
`boolean-phases-N.json`, `memory-limits.json`, `boolean-N.json`. They are made by

<!-- not run: takes minutes; tests/unit/benchmarks runs what it calls, small -->
```sh
python -m benchmarks.profiles.memory_limits
python -m benchmarks.profiles.boolean_phases --subscriptions 1000000
skyray bench boolean --subscriptions 1000000 --engines cell_term,hashed_cells,inverted_list,lfilter,mbr_trie,\\
    pt_quadtree,rt_tree,postgis,postgis_region,duckdb --json
skyray bench boolean --subscriptions 5000000 --engines cell_term,inverted_list --json
```

and this page by `python -m benchmarks.profiles.boolean_profile`. Limits and phases were measured one after the other,
while the other core had work of its own; that changes both alike, so the ratios hold better than the figures.

## By phase

The phases are those of `matching/boolean/engines/cell_match.py`. Nanoseconds of a message, and share of the whole:

| phase | finds | 1,000,000 | share | 5,000,000 | share |
| --- | --- | --- | --- | --- | --- |
{phases}
| all | | {all} | |

A message has {terms} terms. At 1,000,000 subscriptions it looks at {few[runs]:.0f} runs with {few[postings]:,.0f}
postings, keeps {few[candidates]:.0f} candidates and tells {few[matches]:.0f} matches; at 5,000,000 it is
{many[runs]:.0f} runs, {many[postings]:,.0f} postings, {many[candidates]:.0f} candidates and {many[matches]:.0f}
matches. Of the candidates {share[0]} match, and {share[1]}: what is left to save is not work in vain but the price of a
match, {price[0]:.0f} ns at 1,000,000 and {price[1]:.0f} ns at 5,000,000.

## Bytes, and what memory allows

Cache lines of 64 bytes a message, counted by the same kernel (a match adds one for its number):

| lines of | 1,000,000 | 5,000,000 |
| --- | --- | --- |
{lines}
| all | {all_lines} |

Upper bounds: neighbours are counted twice where two phases meet the same line. Keyword lines are two for each candidate
with a third keyword.

This machine reads {gib:.1f} GiB/s in a row. A line anywhere in 64 MiB takes {waits[0][chased_ns]:.0f} ns if each
address comes from the line before, {waits[0][branched_ns]:.1f} ns if addresses are known but a branch on each cannot be
foretold, and {waits[0][gathered_ns]:.1f} ns if nothing stands in the way; in 512 MiB {waits[1][chased_ns]:.0f},
{waits[1][branched_ns]:.1f} and {waits[1][gathered_ns]:.1f} ns. The same lines in microseconds, for a state of
{state[0]:.0f} and {state[1]:.0f} MiB:

| if every line were read | 1,000,000 | 5,000,000 |
| --- | --- | --- |
| in a row (bandwidth) | {in_a_row} |
| anywhere, nothing in the way | {gathered} |
| anywhere, with a branch each | {branched} |
| one after another (latency) | {chased} |
| `cell_term` takes | {took} |

So a message takes {times[0]} times what the memory alone would take at 1,000,000 and {times[1]} times at 5,000,000;
waiting for each line would take at least {waiting} times as long as it does. Asking ahead
(`matching/storage/prefetch.py`) is what buys that: the phases know their addresses before they need what stands there.

Tried, each in turns with the engine as it is, and left out: sorting blocks from 16 postings on instead of 32 (no
faster, larger), and four sorted postings a bucket instead of two (slower).

## Against the others

| subscriptions | engine | messages/s | bytes a subscription | built/s |
| --- | --- | --- | --- | --- |
{engines}

The machine was shared with other work while these were timed, so compare them with each other: engines took turns. With
as many standing, `cell_term` takes in {coming[0]:,.0f} and forgets {going[0]:,.0f} subscriptions a second at 1,000,000,
{coming[1]:,.0f} and {going[1]:,.0f} at 5,000,000.

Since that run `lfilter` and `pt_quadtree` have become smaller and are built faster. The three in turns, at 1,000,000
and a much busier hour (`boolean-1000000-lfilter.json`):

| engine | messages/s | bytes a subscription | new subscriptions/s |
| --- | --- | --- | --- |
{since}

Against length of messages, size of regions and number of
subscriptions: [figures](boolean-figures.md).
"""

if __name__ == "__main__":
    PAGE.write_text(page())
