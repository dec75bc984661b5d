"""Plots as inline SVG, without a library: lines over numbers, and bars. Colours are CSS variables of the page."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 640, 280
#: Space for labels, in pixels: left, right, top, bottom.
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 72, 14, 44
_BAR = 26
#: Room for the names beside bars, and for the figures behind them.
_NAMES, _FIGURES = 120, 60


class Line(NamedTuple):
    """A line of points (x, y); `tone` is the number of its colour, 1 to 3; crossed points are drawn as crosses."""

    name: str
    points: Sequence[tuple[float, float]]
    tone: int
    crossed: Sequence[bool] = ()


def ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Four to eight round numbers within [low, high]; powers of ten with 2 and 5 between them if `logarithmic`."""
    if logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1, 2, 5) if len(powers) <= 3 else (1,)
        return [value for power in powers for factor in factors if low <= (value := factor * 10.0**power) <= high]
    raw = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [step * nth for nth in range(math.ceil(low / step), math.floor(high / step) + 1)]


def short(value: float) -> str:
    """A number in few characters: 12,000 is 12k."""
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def _scale(low: float, high: float, begin: float, end: float, logarithmic: bool) -> Callable[[float], float]:
    change = math.log10 if logarithmic else float
    span = change(high) - change(low) or 1.0
    return lambda value: begin + (change(value) - change(low)) / span * (end - begin)


def line_plot(
    lines: Sequence[Line], x_label: str, y_label: str, log_x: bool = False, log_y: bool = False, limit: float = 0.0
) -> str:
    """An SVG of lines with axes, a legend at the ends of the lines, and a dashed line at `limit` if it is positive.

    Points with a coordinate that a logarithmic axis cannot have are left out; no point at all gives a sentence.
    """
    shown = [
        line._replace(points=[p for p in line.points if (p[0] > 0 or not log_x) and (p[1] > 0 or not log_y)])
        for line in lines
    ]
    xs = [x for line in shown for x, _ in line.points]
    ys = [y for line in shown for _, y in line.points] + ([limit] if limit > 0 else [])
    if not xs:
        return "<p>Nothing was measured.</p>"
    x_low, x_high = (min(xs) / 1.1, max(xs) * 1.1) if log_x else (min(0.0, *xs), max(*xs, 1e-9))
    y_low, y_high = (min(ys) / 1.3, max(ys) * 1.3) if log_y else (0.0, max(*ys, 1e-9) * 1.1)
    place_x = _scale(x_low, x_high, _LEFT, _WIDTH - _RIGHT, log_x)
    place_y = _scale(y_low, y_high, _HEIGHT - _BOTTOM, _TOP, log_y)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(y_label)} by {escape(x_label)}">']
    parts += [_grid_y(place_y(value), short(value)) for value in ticks(y_low, y_high, log_y)]
    parts += [_tick_x(place_x(value), short(value)) for value in ticks(x_low, x_high, log_x)]
    if limit > 0:
        at = place_y(limit)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="axis" x="{_LEFT + 6}" y="{at - 5:.1f}">limit</text>')
    parts += [_drawn(line, place_x, place_y) for line in shown if line.points]
    parts += _named([line for line in shown if line.points], place_y)
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join([*parts, "</svg>"])


def _grid_y(at: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="axis" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _tick_x(at: float, label: str) -> str:
    return f'<text class="axis" x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>'


def _drawn(line: Line, place_x: Callable[[float], float], place_y: Callable[[float], float]) -> str:
    spots = [(place_x(x), place_y(y)) for x, y in line.points]
    parts = [f'<polyline class="line tone{line.tone}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in spots)}"/>']
    crossed = line.crossed or [False] * len(spots)
    for (x, y), (real_x, real_y), cross in zip(spots, line.points, crossed, strict=False):
        title = f"<title>{escape(line.name)}: {short(real_y)} at {short(real_x)}</title>"
        shape = (
            f'<path class="line tone{line.tone}" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8">{title}</path>'
            if cross
            else f'<circle class="dot tone{line.tone}" cx="{x:.1f}" cy="{y:.1f}" r="3">{title}</circle>'
        )
        parts.append(shape)
    return "".join(parts)


def _named(lines: Sequence[Line], place_y: Callable[[float], float]) -> list[str]:
    """Names at the ends of lines, 14 pixels apart at least."""
    ends = sorted((place_y(line.points[-1][1]), line.name, line.tone) for line in lines)
    parts, last = [], -math.inf
    for at, name, tone in ends:
        last = max(at, last + 14)
        parts.append(f'<text class="end text{tone}" x="{_WIDTH - _RIGHT + 6}" y="{last + 4:.1f}">{escape(name)}</text>')
    return parts


def bar_plot(bars: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars of shares, 0 to 1, each with its name and percentage."""
    height, room = _BAR * len(bars) + 8, _WIDTH - _NAMES - _FIGURES
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="busy share by component">']
    for nth, (name, share) in enumerate(bars):
        top, width = 4 + nth * _BAR, max(1.0, room * min(1.0, share))
        parts.append(
            f'<text class="end" x="{_NAMES - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="track" x="{_NAMES}" y="{top}" width="{room}" height="18" rx="3"/>'
            f'<rect class="bar" x="{_NAMES}" y="{top}" width="{width:.1f}" height="18" rx="3"/>'
            f'<text class="end" x="{_WIDTH - _FIGURES + 8}" y="{top + 15}">{share:.0%}</text>'
        )
    return "".join([*parts, "</svg>"])
