"""A picture of results: where the messages lie that subscriptions hold, over the outline of the land.

Matplotlib draws it; nothing is looked up elsewhere (`gateway/world/README.md` says where the outline is from). Used by
`skyray show --map`.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from gateway.terminal import shown, writing_to
from matching.errors import ConfigError

#: Subscriptions that get a colour and a line in the legend; the others share a grey.
COLOURED = 10
#: Endings that are understood.
FORMS = (".png", ".svg", ".pdf")
#: Share of the extent of what is shown that is left free around it, and the least of it in degrees.
MARGIN, LEAST_DEGREES = 0.08, 1.0
#: How much wider than high a map is at most.
WIDEST = 2.0
_LAND, _SHORE, _SEA, _OTHER = "#e9e5dc", "#b5ae9e", "#f7fafc", "#8a8f98"


def draw_results(payload: Mapping[str, Any], path: Path) -> None:
    """Draw what subscriptions hold.

    Parameters
    ----------
    payload : mapping
        Of `gateway.showing.who_got_what`.
    path : Path
        Ends in .png, .svg or .pdf.

    Raises
    ------
    ConfigError
        For another ending, where matplotlib is missing, or where there is nothing to draw.
    DeliveryError
        If the file cannot be written.
    """
    if path.suffix.lower() not in FORMS:
        raise ConfigError(f"--map {path}: end the name in one of {', '.join(FORMS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--map needs matplotlib: pip install 'skyray[map]'") from None
    shown_ones = [one for one in payload["subscriptions"] if _points(one) or one.get("region")]
    if not shown_ones:
        raise ConfigError(f"--map {path}: no subscription that is shown holds a message; name others")
    figure = Figure(figsize=(10, 6))
    axes = figure.subplots()
    axes.set_facecolor(_SEA)
    for ring in _land():
        lon, lat = zip(*ring, strict=True)
        axes.fill(lon, lat, facecolor=_LAND, edgecolor=_SHORE, linewidth=0.5)
    seen: list[tuple[float, float]] = []
    for number, one in enumerate(shown_ones):
        seen += _draw(axes, one, f"C{number}" if number < COLOURED else _OTHER, number < COLOURED)
    _frame(axes, seen)
    axes.set_title(
        f"{Path(payload['run']).name}: what subscriptions hold ({payload['state']})", loc="left", fontsize=10
    )
    axes.set_xlabel("longitude")
    axes.set_ylabel("latitude")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.12), fontsize=8, frameon=False, ncols=2)
    with writing_to(path):
        figure.savefig(path, dpi=150, bbox_inches="tight")


def _draw(axes: Any, one: Mapping[str, Any], colour: str, named: bool) -> list[tuple[float, float]]:
    """One subscription: where it stands, what it holds, and lines between; the points that must be in the picture."""
    points, seen = _points(one), []
    label = _label(one) if named else None
    if points:
        lon, lat = zip(*points, strict=True)
        axes.scatter(lon, lat, s=22, color=colour, label=label, zorder=4, edgecolors="white", linewidths=0.4)
        seen += points
    for west, south, east, north in _boxes(one.get("region")):
        corners = ((west, south), (east, south), (east, north), (west, north), (west, south))
        axes.plot(*zip(*corners, strict=True), color=colour, linewidth=1.0, zorder=3, label=None if points else label)
        seen += corners
    if one.get("lon") is not None:
        home = (one["lon"], one["lat"])
        for lon, lat in points:
            axes.plot((home[0], lon), (home[1], lat), color=colour, linewidth=0.5, alpha=0.5, zorder=3)
        axes.scatter(*home, s=70, marker="*", color=colour, zorder=5, edgecolors="black", linewidths=0.4)
        seen.append(home)
    return seen


def _label(one: Mapping[str, Any]) -> str:
    """As the legend has it; matplotlib would take dollar signs for mathematics and leave out what begins with _."""
    words = " ".join(one["keywords"][:3]) + (" ..." if len(one["keywords"]) > 3 else "")
    text = shown(f"{one['subscription_id']} ({one['kind']}: {words})")[:48].replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


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
    """Show the part of the earth in which everything lies, a degree as long on both axes."""
    lon, lat = zip(*seen, strict=True)
    around = max(LEAST_DEGREES, MARGIN * max(max(lon) - min(lon), max(lat) - min(lat)))
    width, height = max(lon) - min(lon) + 2 * around, max(lat) - min(lat) + 2 * around
    width, height = max(width, height), max(height, width / WIDEST)
    west, south = _from_middle(lon, width, 180.0), _from_middle(lat, height, 90.0)
    axes.set_xlim(west, min(180.0, west + width))
    axes.set_ylim(south, min(90.0, south + height))
    axes.set_aspect("equal", adjustable="box")


def _from_middle(values: Sequence[float], size: float, limit: float) -> float:
    """Where an axis of that size begins if the values lie in the middle of it, but for the edge of the earth."""
    return max(-limit, min(limit - size, (min(values) + max(values) - size) / 2))


def _land() -> list[list[tuple[float, float]]]:
    """Outer rings of the land, in degrees."""
    outline = msgspec.json.decode(files("gateway").joinpath("world", "land.json").read_bytes())
    return [polygon[0] for polygon in outline["coordinates"]]
