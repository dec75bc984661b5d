"""Figures on paper: what `benchmarks.figures` has measured, as JSON and PNG.

A report has `figure`, `x_label`, `x`, and `panels`, and perhaps `over`, what all panels have in common. A panel has
`y_label`, `log` (of x, of y), perhaps a `title` and an `x` and `x_label` of its own, and one of `series` (name to a
value an x, drawn as lines), `groups` (the same as bars against names) and `bars` (name to value). A value of None is
left out. `python -m benchmarks.figures.drawing FILE.json ...` draws the pictures of numbers that are there already.
"""

import json
import sys
from itertools import cycle
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
    from matplotlib.transforms import ScaledTranslation

    panels = report["panels"]
    rows = 2 if len(panels) in (4, 6) else 1
    columns = len(panels) // rows
    wide = max(5.0, 0.9 * len(report["x"])) if any("groups" in panel for panel in panels) else 5.0
    entries = max(len(panel.get("series") or panel.get("groups") or ()) for panel in panels)
    high = 3.8 + _LEGEND_ROW_IN * -(-entries // 2)
    shape, axes = with_pyplot.subplots(rows, columns, figsize=(wide * columns, high * rows), squeeze=False)
    for panel, axis in zip(panels, axes.flat, strict=True):
        values_of_x = panel.get("x", report["x"])
        axis.set_title(panel.get("title", ""), fontsize="medium")
        if "bars" in panel:
            axis.barh(list(panel["bars"])[::-1], list(panel["bars"].values())[::-1], color="tab:blue")
            axis.set_xlabel(panel["y_label"])
            _set_bar_scale(axis, panel["log"][1], list(panel["bars"].values()))
            continue
        if "groups" in panel:
            height = 0.8 / len(panel["groups"])
            places = np.arange(len(values_of_x))
            for number, (name, values) in enumerate(panel["groups"].items()):
                axis.barh(places + number * height, _numbers(values), height, label=name)
            axis.set_yticks(places + 0.4 - height / 2, values_of_x)
            axis.invert_yaxis()
            axis.set_xlabel(panel["y_label"])
            _set_bar_scale(axis, panel["log"][1], [value for values in panel["groups"].values() for value in values])
        else:
            # dashes and marks differ, so that lines that coincide are seen to
            for (name, values), line, mark in zip(panel["series"].items(), cycle(_LINES), cycle(_MARKS), strict=False):
                axis.plot(values_of_x, _numbers(values), linestyle=line, marker=mark, label=name)
            axis.set_xscale("log" if panel["log"][0] else "linear")
            log = panel["log"][1] and _spans(panel["series"])
            axis.set_yscale("log" if log else "linear")
            if not log:
                axis.set_ylim(bottom=0)
            axis.set_xlabel(panel.get("x_label", report["x_label"]))
            axis.set_ylabel(panel["y_label"])
            axis.set_xticks(values_of_x, [_short(value) for value in values_of_x])
            axis.xaxis.minorticks_off()
            if log:
                _label_decades(axis.yaxis, _MOST_DECADES_UP)
            axis.grid(alpha=0.3)
        # below the panel, where it hides no line
        below = axis.transAxes + ScaledTranslation(0.0, -_LEGEND_BELOW_IN, shape.dpi_scale_trans)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below, ncols=2, frameon=False)
    if report.get("over"):
        shape.suptitle(report["over"])
    shape.tight_layout()
    shape.savefig(path, dpi=100, pil_kwargs={"optimize": True})
    with_pyplot.close(shape)


def _spans(series: dict[str, list[Any]]) -> bool:
    """Whether the values differ enough for a logarithmic axis to have labels."""
    there = [value for line in series.values() for value in line if value is not None]
    return max(there) > 3.0 * min(there)


def _numbers(values: list[Any]) -> list[float]:
    """None, which JSON can say, as what matplotlib leaves out."""
    return [float("nan") if value is None else value for value in values]


def _short(value: Any) -> str:
    """A tick label: thousands and millions as k and M, since seven digits would run into each other."""
    if not isinstance(value, int) or value < 10_000:
        return str(value)
    return f"{value / 1_000_000:g}M" if value >= 1_000_000 else f"{value / 1_000:g}k"


def _set_bar_scale(axis, log: bool, values: list[Any]) -> None:
    """Logarithmic if that is asked for and the values differ enough to have labels; else from nothing on."""
    from matplotlib import ticker

    if log and _spans({"bars": values}):
        axis.set_xscale("log")
        axis.set_xlim(left=_BARS_BEGIN * min(value for value in values if value))
        _label_decades(axis.xaxis, _MOST_DECADES_ACROSS)
    else:
        axis.xaxis.set_major_locator(ticker.MaxNLocator(_MOST_LABELS))
        axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))


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
