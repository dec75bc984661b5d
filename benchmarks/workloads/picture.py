"""A picture of where a message's time goes, from results of `benchmarks.workloads.profile`: `docs/performance.svg`.

    python -m benchmarks.workloads.picture [RESULT.json ...]

A bar for each part, the parts of a kind together, and a colour for each result: without arguments those in
`benchmarks/results/alerts-profile-*.json`.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.command import ROOT

OUT = ROOT / "docs" / "performance.svg"
_WIDTH, _NAMES, _FIGURES, _BAR, _GAP = 720, 170, 70, 11, 8
_TONES = ("#1b6ca8", "#e08e29", "#4a9b5f", "#8b5fbf")
#: Words for parts that are one in the picture.
_TOGETHER = {
    "delivery digest": "delivery", "delivery bolt": "delivery", "delivery sink": "delivery",
    "delivery names in results": "delivery", "other threads": "files (threads)", "message log": "tuple bolt",
    "skyline match": "skyline", "skyline close": "skyline", "skyline refill": "skyline", "boolean match": "boolean",
    "boolean close": "boolean", "decay match": "decay", "decay close": "decay", "knn match": "knn", "knn close": "knn",
    "topk match": "topk", "topk close": "topk", "topk refill": "topk refills", "topk window": "windows",
    "skyline window": "windows",
}  # fmt: skip


def drawn(results: Sequence[dict[str, Any]]) -> str:
    """The SVG of some results."""
    parts = [_joined(result["parts_us"]) for result in results]
    names = [name for name, _ in Counter({name: max(one[name] for one in parts) for name in parts[-1]}).most_common()]
    most, room = max(max(one.values()) for one in parts), _WIDTH - _NAMES - _FIGURES
    block, top = _BAR * len(results) + _GAP, 22 * len(results) + 14
    height = top + block * len(names) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12"><title>Processor time of a message by part</title><rect width="{_WIDTH}" height="{height}" '
        'fill="#ffffff"/>'
    ]
    for nth, result in enumerate(results):
        lines.append(f'<rect x="12" y="{10 + 22 * nth}" width="12" height="12" fill="{_TONES[nth % len(_TONES)]}"/>')
        lines.append(f'<text x="30" y="{20 + 22 * nth}">{escape(_label(result))}</text>')
    for place, name in enumerate(names):
        at = top + place * block
        lines.append(f'<text x="{_NAMES - 8}" y="{at + block / 2 + 1}" text-anchor="end">{escape(name)}</text>')
        for nth, one in enumerate(parts):
            width, y = max(1.0, room * one[name] / most), at + nth * _BAR
            tone = _TONES[nth % len(_TONES)]
            lines.append(f'<rect x="{_NAMES}" y="{y}" width="{width:.1f}" height="{_BAR - 1}" fill="{tone}"/>')
            lines.append(f'<text x="{_NAMES + width + 5:.1f}" y="{y + 9}" font-size="9">{one[name]:.1f}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _label(result: dict[str, Any]) -> str:
    count, updates = sum(result["subscriptions"].values()), sum(result["updates_per_message"].values())
    return (
        f"{count:,} subscriptions, batches of {result['batch']}: {result['us_per_message']:.0f} us of processor time a "
        f"message, {updates:.0f} updates"
    )


def _joined(parts: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, us in parts.items():
        found[_TOGETHER.get(name, name)] += us
    return found


def main(paths: Sequence[str]) -> None:
    """Draw the given results, or all."""
    found = [Path(path) for path in paths] or sorted((ROOT / "benchmarks" / "results").glob("alerts-profile-*.json"))
    results = [json.loads(path.read_text()) for path in found]
    results.sort(key=lambda result: (sum(result["subscriptions"].values()), result["batch"]))
    OUT.write_text(drawn(results))


if __name__ == "__main__":
    main(sys.argv[1:])
