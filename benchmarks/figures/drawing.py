"""Figures on paper, as JSON and PNG.

A report has `figure`, `x_label`, `x`, `panels`, and perhaps `over`, what all panels have in common. A panel has
`y_label`, `series` (name to a value an x, None where there is none), and perhaps a `title`, and an `x` and `x_label` of
its own. Numbers are drawn as lines, names as bars.
"""

import json
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure
from pandas import DataFrame
from PIL import Image  # matplotlib brings it

from benchmarks.command import provenance

#: An axis is logarithmic where its largest value is at least so many times the smallest: of x, of what is measured.
_LOG_X, _LOG_Y = 10.0, 5.0
#: In inches: a panel, and a bar in it.
_WIDE, _HIGH, _BAR = 5.0, 4.5, 0.07


def write(report: dict[str, Any], path: Path) -> None:
    """Write `path`.json and `path`.png, making the folder; the report says from then on where it comes from."""
    report["made_by"] = provenance()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report, path.with_suffix(".png"))


def draw(report: dict[str, Any], path: Path) -> None:
    """Up to three panels in a row, more in two; a name looks alike in all of them, and the legend is below."""
    panels, thousands = report["panels"], ticker.EngFormatter(sep="")
    names = list(dict.fromkeys(name for panel in panels for name in panel["series"]))
    frames = [DataFrame(panel["series"], panel.get("x", report["x"]), names, float) for panel in panels]
    # dashes and marks differ, so that lines that coincide are seen to
    styles = [mark + line for mark, line, _ in zip(cycle("os^xvD"), cycle(("-", "--", "-.", ":")), names, strict=False)]
    rows = 1 if len(panels) < 4 else 2
    columns = -(-len(panels) // rows)
    size = _WIDE * columns, rows * max(_HIGH, *(_BAR * frame.size for frame in frames))
    shape = Figure(size, layout="constrained")
    axes = shape.subplots(rows, columns, squeeze=False)
    for axis, panel, frame in zip_longest(axes.flat, panels, frames):
        if panel is None:
            axis.set_axis_off()
            continue
        axis.set_title(panel.get("title", ""), fontsize="medium")
        axis.tick_params(labelsize="small")
        x, log = frame.index.tolist(), _spans(frame.to_numpy(), _LOG_Y)
        labels = [thousands(value) if isinstance(value, int) and value >= 10_000 else str(value) for value in x]
        if len(x) == 1 or any(isinstance(value, str) for value in x):
            bars = frame.T if len(x) == 1 else frame.set_axis(labels)
            bars.plot.barh(ax=axis, width=0.8, logx=log, legend=False, xlabel=panel["y_label"], ylabel="")
            axis.invert_yaxis()
            axis.set_xlim(left=0.7 * np.nanmin(frame) if log else 0.0)
            measured = axis.xaxis
        else:
            frame.plot(ax=axis, style=styles, logx=_spans(x, _LOG_X), logy=log, legend=False)
            axis.set(xlabel=panel.get("x_label", report["x_label"]), ylabel=panel["y_label"])
            axis.set_xticks(x, labels)
            axis.xaxis.minorticks_off()
            axis.set_ylim(bottom=None if log else 0.0)
            axis.grid(alpha=0.3)
            measured = axis.yaxis
        measured.set_major_locator(ticker.LogLocator(subs=(1, 3)) if log else ticker.MaxNLocator(5))
        measured.set_major_formatter(ticker.StrMethodFormatter("{x:,.10g}"))
        measured.set_minor_formatter(ticker.NullFormatter())
    if len(frames[0]) > 1:
        entries = axes.flat[0].get_legend_handles_labels()
        shape.legend(*entries, loc="outside lower center", ncols=2 * columns, frameon=False)
    shape.suptitle(report.get("over", ""))
    shape.savefig(path, dpi=100)
    # a third of the bytes: a picture of lines has few colours
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def _spans(values: Any, times: float) -> bool:
    """Whether these values, some of which may be missing, differ so much that an axis has to be logarithmic."""
    return bool(0.0 < times * np.nanmin(values) <= np.nanmax(values))
