"""The report of a load test as one HTML file: plots as inline SVG, no script, nothing loaded from elsewhere.

`gateway.load.ramp` and `gateway.load.loadtest` make the figures, `gateway.load.svg` draws.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

from gateway.load.loadtest import CHANGE_LATENCIES, render
from gateway.load.svg import Line, bar_plot, line_plot
from gateway.shell.terminal import whole_file

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #59636e; --grid: #e3e7eb;
  --tone1: #1f6fb2; --tone2: #b35900; --tone3: #7a3e9d; --limit: #b3261e; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e8ebee; --soft: #9aa4af; --grid: #2c333b;
  --tone1: #62a8e5; --tone2: #f0a04b; --tone3: #c792e8; --limit: #ff8a80; --good: #57c26d; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 720px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; }
p { color: var(--soft); margin: .2rem 0 .6rem; } pre { overflow-x: auto; font-size: 13px; }
svg { width: 100%; height: auto; } text { fill: var(--text); font-size: 12px; } .axis { fill: var(--soft); }
.grid { stroke: var(--grid); } .limit { stroke: var(--limit); stroke-dasharray: 5 4; }
.line { fill: none; stroke-width: 2; } .tone1 { stroke: var(--tone1); } .tone2 { stroke: var(--tone2); }
.tone3 { stroke: var(--tone3); } .dot { fill: var(--back); stroke-width: 2; } .text1 { fill: var(--tone1); }
.text2 { fill: var(--tone2); } .text3 { fill: var(--tone3); } .bar { fill: var(--tone1); } .track { fill: var(--grid); }
.good { color: var(--good); } .bad { color: var(--limit); } table { border-collapse: collapse; font-size: 13px; }
td, th { text-align: right; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--grid); }
"""


def write_html(report: dict[str, Any], out: Path) -> None:
    """Write the report as HTML, atomically. Raises DeliveryError if it cannot be written."""
    with whole_file(out) as file:
        file.write(as_html(report).encode())


def as_html(report: dict[str, Any]) -> str:
    """The whole page; the parts of a ramp only where there was one."""
    sections = [_head(report), *([_ramp(report["ramp"])] if report.get("ramp") else []), _hold(report)]
    sections += [*([_changes(report["changes"])] if report.get("changes") else []), _busy(report)]
    settings = escape(json.dumps(report["settings"], indent=1))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Skyray load test</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{''.join(sections)}<h2>Settings</h2><pre>{settings}</pre></body></html>"
    )


def _head(report: dict[str, Any]) -> str:
    check = report["check"]
    verdict = '<span class="good">rate kept</span>' if report["kept_up"] else '<span class="bad">rate not kept</span>'
    if check is not None:
        verdict += ", " + (
            '<span class="good">updates exact</span>'
            if check["exact"]
            else '<span class="bad">updates not exact</span>'
        )
    return f"<h1>Skyray load test</h1><p>{verdict}</p><pre>{escape(render(report))}</pre>"


def _ramp(ramp: dict[str, Any]) -> str:
    steps = sorted((step for step in ramp["steps"] if step["p99_s"] is not None), key=lambda step: step["rate"])
    crossed = [not step["kept"] for step in steps]
    lines = [
        Line(name, [(step["rate"], 1e3 * step[key]) for step in steps], tone, crossed)
        for name, key, tone in (("p50", "p50_s", 1), ("p99", "p99_s", 2))
    ]
    rows = "".join(
        f"<tr><td>{step['rate']:,.0f}</td><td>{step['reached_rate']:,.0f}</td><td>{_ms(step['p50_s'])}</td>"
        f"<td>{_ms(step['p99_s'])}</td><td>{escape(step['why']) or 'kept'}</td></tr>"
        for step in ramp["steps"]
    )
    return (
        f"<h2>Ramp: latency (ms) by rate (messages/s)</h2><p>Peak {ramp['peak_per_s']:,.0f} messages/s; crosses are "
        "steps that broke.</p>"
        f"{line_plot(lines, 'messages/s', 'latency in ms', True, True, 1e3 * ramp['limit_p99_s'])}"
        f"<table><tr><th>rate</th><th>reached</th><th>p50 ms</th><th>p99 ms</th><th></th></tr>{rows}</table>"
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.0f}"


def _hold(report: dict[str, Any]) -> str:
    rows = report["timeline"]
    names = (("p50", "p50_s", 1), ("p99", "p99_s", 2), ("p99.9", "p999_s", 3))
    lines = [Line(name, [(row["at_s"], 1e3 * row[key]) for row in rows], tone) for name, key, tone in names]
    gaps = [after["at_s"] - row["at_s"] for row, after in zip(rows, rows[1:], strict=False)]
    interval_s = min(gaps, default=1.0)
    updates = [Line("updates/s", [(row["at_s"], row["count"] / interval_s) for row in rows], 1)]
    return (
        "<h2>Latency (ms) over time (s)</h2><p>From when a message was due to its update, by due time.</p>"
        f"{line_plot(lines, 'seconds', 'latency in ms', log_y=True)}"
        "<h2>Throughput: updates/s over time (s)</h2><p>Updates by the due time of their messages; the last interval "
        f"may be a part of one.</p>{line_plot(updates, 'seconds', 'updates/s')}"
    )


def _changes(changes: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{until}</td><td>{one['count']:,}</td><td>{_ms(one.get('p50_s'))}</td><td>{_ms(one.get('p99_s'))}</td>"
        f"<td>{_ms(one.get('max_s'))}</td></tr>"
        for one, until in ((changes[name], until) for name, until in CHANGE_LATENCIES)
    )
    return (
        f"<h2>Changes of subscriptions</h2><p>{changes['offered']:,} offered, {changes['done']:,} done: "
        f"{changes['added']:,} added, {changes['ended']:,} ended, {changes['rate']:,.0f} of each a second.</p>"
        f"<table><tr><th>from due to</th><th>changes</th><th>p50 ms</th><th>p99 ms</th><th>longest ms</th></tr>{rows}"
        "</table>"
    )


def _busy(report: dict[str, Any]) -> str:
    components = report["topology"]["components"]
    bars = [(name, max(task["busy_share"] for task in part["tasks"])) for name, part in components.items()]
    return f"<h2>Busy share of the busiest task of each component</h2>{bar_plot(bars)}"
