"""Figures on paper: what `benchmarks.figures` has measured, as JSON and PNG.

A report has `figure`, `x_label`, `x`, and `panels`, and perhaps `over`, what all panels have in common. A panel has
`y_label`, `log` (of x, of y), perhaps a `title` and an `x` and `x_label` of its own, and one of `series` (name to a
value an x, drawn as lines), `groups` (the same as bars against names) and `bars` (name to value). A value of None is
left out. `python -m benchmarks.figures.drawing FILE.json ...` draws the pictures of numbers that are there already.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import provenance
from matching.errors import ConfigError

_LINES, _MARKS = ("-", "--", "-.", ":"), ("o", "s", "^", "x", "v", "D")
#: How far below the axis a legend begins, past the labels, and how high a line of it is, in inches.
_LEGEND_BELOW_IN, _LEGEND_ROW_IN = 0.45, 0.22
#: An axis, from left to right or upwards, of more than so many decades is labelled at powers of ten alone.
_MOST_DECADES_ACROSS, _MOST_DECADES_UP = 2.2, 2.7
#: A logarithmic axis of bars begins at this share of the shortest one; any other has no more parts than this.
_BARS_BEGIN, _MOST_LABELS = 0.7, 4


def pyplot() -> Any:
    """matplotlib's pyplot, for files.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as ready
    except ImportError as missing:
        raise ConfigError("figures need matplotlib: pip install 'skyray[bench]'") from missing
    return ready


def write(with_pyplot: Any, report: dict[str, Any], path: Path) -> None:
    """Write `path`.json and `path`.png, making the folder; the report says from then on where it comes from."""
    report["made_by"] = provenance()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    draw(with_pyplot, report, path.with_suffix(".png"))


def draw(with_pyplot: Any, report: dict[str, Any], path: Path) -> None:
    """One panel beside the other, four in two rows; lines against numbers, bars against names."""
    from matplotlib import ticker
    from matplotlib.transforms import ScaledTranslation
    from pandas import DataFrame

    panels = report["panels"]
    rows = 2 if len(panels) in (4, 6) else 1
    columns = len(panels) // rows
    wide = max(5.0, 0.9 * len(report["x"])) if any("groups" in panel for panel in panels) else 5.0
    entries = max(len(panel.get("series") or panel.get("groups") or ()) for panel in panels)
    high = 3.8 + _LEGEND_ROW_IN * -(-entries // 2)
    shape, axes = with_pyplot.subplots(rows, columns, figsize=(wide * columns, high * rows), squeeze=False)
    for panel, axis in zip(panels, axes.flat, strict=True):
        x, log = panel.get("x", report["x"]), panel["log"][1] and _spans(panel)
        axis.set_title(panel.get("title", ""), fontsize="medium")
        if "series" in panel:
            # dashes and marks differ, so that lines that coincide are seen to
            styles = [mark + line for mark, line in zip(_MARKS * len(_LINES), _LINES * len(_MARKS), strict=True)]
            lines = DataFrame(panel["series"], index=x, dtype=float)
            lines.plot(ax=axis, style=styles[: lines.shape[1]], logx=panel["log"][0], logy=log, legend=False)
            axis.set_xlabel(panel.get("x_label", report["x_label"]))
            axis.set_ylabel(panel["y_label"])
            named = any(isinstance(value, str) for value in x)
            axis.set_xticks(range(len(x)) if named else x, [_short(value) for value in x])
            axis.xaxis.minorticks_off()
            if log:
                _label_decades(axis.yaxis, _MOST_DECADES_UP)
            else:
                axis.set_ylim(bottom=0)
            axis.grid(alpha=0.3)
        else:
            bars = DataFrame(panel.get("groups") or {"": panel["bars"]}, dtype=float)
            bars.index = list(panel.get("bars", x))
            bars.plot.barh(ax=axis, width=0.8, logx=log, legend=False)
            axis.invert_yaxis()
            axis.set_xlabel(panel["y_label"])
            if log:
                axis.set_xlim(left=_BARS_BEGIN * bars.min(axis=None))
                _label_decades(axis.xaxis, _MOST_DECADES_ACROSS)
            else:
                axis.xaxis.set_major_locator(ticker.MaxNLocator(_MOST_LABELS))
                axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
        if "bars" in panel:
            continue
        # below the panel, where it hides no line
        below = axis.transAxes + ScaledTranslation(0.0, -_LEGEND_BELOW_IN, shape.dpi_scale_trans)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below, ncols=2, frameon=False)
    if report.get("over"):
        shape.suptitle(report["over"])
    shape.tight_layout()
    shape.savefig(path, dpi=100)
    with_pyplot.close(shape)
    from PIL import Image  # matplotlib brings it

    # a third of the bytes: a picture of lines has few colours
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def _spans(panel: dict[str, Any]) -> bool:
    """Whether the values differ enough for a logarithmic axis to have labels."""
    lines = panel.get("series") or panel.get("groups") or {"": panel["bars"].values()}
    there = [value for line in lines.values() for value in line if value is not None]
    return max(there) > 3.0 * min(there)


def _short(value: Any) -> str:
    """A tick label: thousands and millions as k and M, since seven digits would run into each other."""
    if not isinstance(value, int) or value < 10_000:
        return str(value)
    return f"{value / 1_000_000:g}M" if value >= 1_000_000 else f"{value / 1_000:g}k"


def _label_decades(axis, most: float) -> None:
    """Plain numbers at 1, 2 and 5 of each decade, or where there are many of them at 1 alone."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if np.log10(high / low) < most else (1.0,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


if __name__ == "__main__":
    for kept in map(Path, sys.argv[1:]):
        draw(pyplot(), json.loads(kept.read_text()), kept.with_suffix(".png"))
