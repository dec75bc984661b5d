"""A map of results: messages and subscriptions over the outline of the land.

Drawn by Matplotlib, without network access (`gateway/world/README.md` says where the outline is from).
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from gateway.runs.distance import EARTH_RADIUS_KM, distance_km, kilometres
from gateway.shell.terminal import shown, writing_to
from matching.errors import ConfigError
from matching.extras import require

#: Colours that colour-blind people can distinguish; and the symbols of points, each in all colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#8c510a")
SYMBOLS = ("o", "s", "^")
#: Subscriptions with their own colour, symbol and line in the legend; the others share a grey.
DISTINCT = len(COLOURS) * len(SYMBOLS)
#: Supported endings.
FORMS = (".png", ".svg", ".pdf")
#: Margin as a fraction of the extent, and its least.
MARGIN, LEAST_KM = 0.08, 0.5
#: How much wider than high a map is at most.
WIDEST = 2.0
#: A message that is farther than this from its subscription's point has no line to it.
LONGEST_LINE_KM = 1_500.0
#: Maps below this many degrees of latitude are stretched so that a kilometre is as long on both axes; below the second
#: there is no outline, which is too coarse.
STRETCHED_DEGREES, OUTLINED_DEGREES = 90.0, 2.0
_LAND, _SHORE, _SEA, _OTHER = "#e9e5dc", "#b5ae9e", "#f7fafc", "#8a8f98"
_KM_PER_DEGREE = math.radians(1.0) * EARTH_RADIUS_KM


def draw_results(payload: Mapping[str, Any], path: Path) -> list[str]:
    """Draw results.

    Parameters
    ----------
    payload : mapping
        Of `gateway.runs.showing.result_lists`.
    path : Path
        Ends in .png, .svg or .pdf.

    Returns
    -------
    list of str
        Notes on what is not in the picture.

    Raises
    ------
    ConfigError
        For another ending, where matplotlib is missing, or where there is nothing to draw.
    DeliveryError
        If the file cannot be written.
    """
    if path.suffix.lower() not in FORMS:
        raise ConfigError(f"--map {path}: end the name in one of {', '.join(FORMS)}")
    require("map", "--map")
    from matplotlib.figure import Figure

    drawn = [one for one in payload["subscriptions"] if _points(one) or one.get("region")]
    if not drawn:
        raise ConfigError(f"--map {path}: no subscription that is shown has a result; name others")
    figure = Figure(figsize=(10, 6))
    axes = figure.subplots()
    seen: list[tuple[float, float]] = []
    far = 0
    for number, one in enumerate(drawn):
        colour = COLOURS[number % len(COLOURS)] if number < DISTINCT else _OTHER
        symbol = SYMBOLS[number // len(COLOURS)] if number < DISTINCT else "."
        label = _label(one) if number < DISTINCT else None
        if number == DISTINCT:
            label = f"{len(drawn) - DISTINCT:,} more subscriptions, in one colour"
        points, without_line = _draw(axes, one, colour, symbol, label)
        seen += points
        far += without_line
    _frame(axes, seen)
    title = f"{Path(payload['run']).name}: results of subscriptions ({payload['state']})"
    axes.set_title(_drawable(title), loc="left", fontsize=10)
    notes = _left_out(payload, drawn)
    if far:
        notes.append(f"{far:,} messages farther than {LONGEST_LINE_KM:,.0f} km from their subscription have no line")
    said = (["stars are the places of subscriptions"] if any("lon" in one for one in drawn) else []) + notes
    legend = axes.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, -0.12),
        fontsize=8,
        frameon=False,
        ncols=2,
        title=textwrap.fill("; ".join(said), 120) or None,
        title_fontsize=8,
    )
    legend.set_alignment("left")
    with writing_to(path):
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return notes


def _draw(
    axes: Any, one: Mapping[str, Any], colour: str, symbol: str, label: str | None
) -> tuple[list[tuple[float, float]], int]:
    """Draw one subscription, its results, and lines between.

    Returns the points that must be in the picture, and how many of them are too far for a line.
    """
    points, seen, far = _points(one), [], 0
    if points:
        lon, lat = zip(*points, strict=True)
        axes.scatter(lon, lat, s=22, color=colour, marker=symbol, label=label, zorder=4, edgecolors="white", lw=0.4)
        seen += points
    for west, south, east, north in _boxes(one.get("region")):
        corners = ((west, south), (east, south), (east, north), (west, north), (west, south))
        axes.plot(*zip(*corners, strict=True), color=colour, linewidth=1.0, zorder=3, label=None if points else label)
        seen += corners
    if one.get("lon") is not None:
        home = (one["lon"], one["lat"])
        for point in points:
            if distance_km(*home, *point) > LONGEST_LINE_KM or abs(home[0] - point[0]) > 180.0:
                far += 1
            else:
                axes.plot(*zip(home, point, strict=True), color=colour, linewidth=0.5, alpha=0.5, zorder=3)
        axes.scatter(*home, s=70, marker="*", color=colour, zorder=5, edgecolors="black", linewidths=0.4)
        seen.append(home)
    return seen, far


def _label(one: Mapping[str, Any]) -> str:
    """Line of the legend: left-to-right parts first."""
    words = list(map(shown, one["keywords"]))
    some = " ".join(words[:3]) + (" ..." if len(words) > 3 else "")
    points = len(_points(one))
    many = f"{points:,}" if points == one["entries"] else f"{points:,} of {one['entries']:,}"
    some = textwrap.shorten(some, 36, placeholder=" ...")
    return _drawable(f"{one['kind']} {shown(one['subscription_id'])[:24]} ({many}): {some}")


def _drawable(text: str) -> str:
    """A text with codes in place of characters that the font lacks, and dollars that Matplotlib reads as such."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    glyphs = get_font(findfont(FontProperties())).get_charmap()
    spelt = (each if ord(each) in glyphs else each.encode("ascii", "backslashreplace").decode() for each in text)
    return "".join(spelt).replace("$", r"\$")


def _left_out(payload: Mapping[str, Any], drawn: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes on what the limits left out."""
    notes = []
    points, total = sum(len(_points(one)) for one in drawn), sum(one["entries"] for one in drawn)
    if points < total:
        notes.append(f"{points:,} of the {total:,} results are drawn (--limit for more)")
    shown_ones, holding = len(payload["subscriptions"]), payload["holding"]
    if holding is not None and holding > shown_ones:
        notes.append(f"{shown_ones:,} of the {holding:,} subscriptions with results are drawn")
    return notes


def _points(one: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [(row["lon"], row["lat"]) for row in one["results"] if "lon" in row]


def _boxes(region: Sequence[float] | None) -> list[tuple[float, ...]]:
    """One rectangle, or two where the region crosses the antimeridian."""
    if region is None:
        return []
    west, south, east, north = region
    if west <= east:
        return [(west, south, east, north)]
    return [(west, south, 180.0, north), (-180.0, south, east, north)]


def _frame(axes: Any, seen: Sequence[tuple[float, float]]) -> None:
    """Show the part of the earth in which everything lies, with some margin, and the land there."""
    lon, lat = zip(*seen, strict=True)
    span = max(max(lon) - min(lon), max(lat) - min(lat))
    middle = (max(lat) + min(lat)) / 2
    # degrees of longitude that are as long as one of latitude
    stretch = 1.0 / max(0.05, math.cos(math.radians(middle))) if span < STRETCHED_DEGREES else 1.0
    extent = max((max(lon) - min(lon)) / stretch, max(lat) - min(lat))
    around = max(LEAST_KM / _KM_PER_DEGREE, MARGIN * extent)
    width, height = (max(lon) - min(lon)) / stretch + 2 * around, max(lat) - min(lat) + 2 * around
    width, height = max(width, height), max(height, width / WIDEST)
    west, south = _from_middle(lon, width * stretch, 180.0), _from_middle(lat, height, 90.0)
    axes.set_xlim(west, min(180.0, west + width * stretch))
    axes.set_ylim(south, min(90.0, south + height))
    axes.set_aspect(stretch, adjustable="box")
    axes.ticklabel_format(useOffset=False)
    axes.locator_params(nbins=6)
    across = f" ({kilometres(width * _KM_PER_DEGREE)} km across)" if span < STRETCHED_DEGREES else ""
    axes.set_xlabel(f"longitude{across}")
    axes.set_ylabel("latitude")
    if span < OUTLINED_DEGREES:
        return
    axes.set_facecolor(_SEA)
    for ring in _land():
        axes.fill(*zip(*ring, strict=True), facecolor=_LAND, edgecolor=_SHORE, linewidth=0.5)


def _from_middle(values: Sequence[float], size: float, limit: float) -> float:
    """Where an axis of that size begins if the values lie in the middle of it, but for the edge of the earth."""
    return max(-limit, min(limit - size, (min(values) + max(values) - size) / 2))


def _land() -> list[list[tuple[float, float]]]:
    """Outer rings of the land, in degrees."""
    outline = msgspec.json.decode(files("gateway").joinpath("world", "land.json").read_bytes())
    return [polygon[0] for polygon in outline["coordinates"]]
