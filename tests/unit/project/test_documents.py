"""What the documents say of commands, files, links and figures is so; that commands work is shown end to end."""

import importlib.util
import json
import re
import shlex
import tomllib

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from gateway import cli
from spark_etl.finding import NAMES
from tests.support.documents import PAGES, ROOT, blocks, commands_in_prose, prose, text_of, without_comment

MAKE_TARGETS = set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
RESULTS = ROOT / "benchmarks" / "results"


def lines():
    """Every command line: page, line."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "sh":
                yield from ((page, without_comment(line)) for line in block.lines)
        yield from ((page, line) for line in commands_in_prose(page))


def refused(line):
    """What is wrong with a command line, without running it; None if nothing is."""
    program, *words = shlex.split(line.removesuffix(")").rpartition("|")[2])
    if program == "make":
        wrong = [word for word in words if "=" not in word and word not in MAKE_TARGETS]
        return f"no target {wrong}" if wrong else None
    if program == "python":
        if words[0] == "-m":
            name = words[1]
            return None if importlib.util.find_spec(name) else f"no module {name}"
        return None if (ROOT / words[0]).is_file() else f"no file {words[0]}"
    if program != "skyray":
        elsewhere = ("source", "export", "pip", "ray", "kcat", "sed", "curl")
        return None if program in elsewhere or (ROOT / program).is_file() else "no such program"
    command = typer.main.get_command(cli.app)
    while words and getattr(command, "commands", None) is not None and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:  # type: ignore[attr-defined]
            return f"no command {name}"
        command = command.commands[name]  # type: ignore[attr-defined]
    there = {option for param in command.get_params(typer.Context(command)) for option in param.opts}
    unknown = [word for word in words if word.startswith("--") and word not in there]
    return f"no option {unknown}" if unknown else None


def test_documents_every_command_line_is_one_that_there_is():
    told = list(lines())
    assert len(told) > 60
    assert [(page, line, wrong) for page, line in told if (wrong := refused(line))] == []
    for wrong in (
        "skyray rum --out x",
        "skyray run --outt x",
        "skyray --versions",
        "make coffee",
        "python -m benchmarks.none",
        "skyrai run",
    ):
        assert refused(wrong)


def test_documents_no_command_hides_where_no_test_looks():
    for page in PAGES:
        assert not re.findall(r"^ {4}(?:\$ )?(?:skyray|python|make|ray|pip) .*$", prose(page), re.MULTILINE), page
        assert {block.language for block in blocks(page)} <= {"sh", "js", "json", "python", "text", "toml", "sql"}, page


def test_documents_what_is_not_run_says_why():
    reasons = [block.not_run for page in PAGES for block in blocks(page) if block.not_run is not None]
    assert reasons and all(len(reason) > 10 for reason in reasons)


@pytest.mark.parametrize("page", PAGES)
def test_documents_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


def test_documents_install_from_a_checkout_while_no_index_has_the_package():
    """`docs/start.md` says where it comes from, and what adds an extra to an installed one."""
    found = [
        (page, named)
        for page in PAGES
        for named in re.findall(r"pip install (?:-\S+ )*'?([^'`\s]+)", text_of(page))
        if named.startswith("skyray")
    ]
    assert found == [("docs/start.md", "skyray[nats]")]
    assert "no package index" in text_of("docs/start.md")


def test_readme_is_of_one_screen():
    shown = re.sub("<!--.*?-->", "", text_of("README.md"), flags=re.DOTALL)
    assert 300 < len(shown.split()) <= 700


def test_site_leads_to_every_page():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named = set()
    for entry in config["nav"]:
        ((_, target),) = entry.items()
        named |= (
            {target}
            if isinstance(target, str)
            else {part if isinstance(part, str) else next(iter(part.values())) for part in target}
        )
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= named
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    assert [Requirement(line).name for line in needed] == ["mkdocs-material"] and config["strict"] is True


def _cells_of(document):
    """Rows of the tables of a document, as lists of cells."""
    rows = (line.strip().strip("|").split("|") for line in text_of(document).splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in row] for row in rows]


def test_readme_numbers_are_those_of_the_results():
    boolean = json.loads((RESULTS / "boolean-1000000.json").read_text())["results"]
    ours, postgis, duckdb = (
        next(row for row in boolean if row["engine"] == name) for name in ("cell_term", "postgis", "duckdb")
    )
    push = json.loads((RESULTS / "push.json").read_text())
    whole = json.loads((RESULTS / "alerts-headline-1000000.json").read_text())
    assert whole["exact"] and whole["kept_up"]
    measured, load = push["measured"], push["workload"]
    each = load["subscriptions"] // load["clients"]
    text = " ".join(text_of("README.md").split())
    for said in (
        f"**{ours['messages_per_s']:,.0f} messages/s** against 1,000,000 `boolean` subscriptions "
        f"of {ours['bytes_per_subscription']:.0f} bytes (PostGIS {postgis['bytes_per_subscription']:.0f})",
        f"{ours['matched_per_message']:.1f} matches a message",
        f"PostGIS {postgis['messages_per_s']:,.0f}, DuckDB {duckdb['messages_per_s']:,.0f}",
        f"**{whole['messages_per_s']:,.0f} messages/s** for a minute",
        f"{whole['updates_per_message']:.0f} updates each",
        f"p50 {whole['p50_ms']:.0f} ms, p99 {whole['p99_ms']:.0f} ms, exact",
        f"**{measured['skyray']['steady']['p99_ms']:.0f} ms** from due to read by its client for 99 of 100 updates",
        f"at {load['rate']:,.0f} messages/s, {load['clients']:,} clients of {each} subscriptions each",
        f"PostGIS with NOTIFY, to one listener, not durable: {measured['postgis']['steady']['p99_ms']:.1f}",
    ):
        assert said in text, said


def test_operate_says_how_fast_push_is():
    push = json.loads((RESULTS / "push.json").read_text())
    rows = {cells[0]: cells[1:] for cells in _cells_of("docs/operate.md")}
    for way, name in (
        ("skyray", "`skyray serve`, to 1,000 clients"),
        ("postgis", "PostGIS and NOTIFY, to one listener"),
    ):
        for load, said in zip(("steady", "quiet", "slow_client"), rows[name], strict=True):
            if load in push["measured"][way]:
                figures = push["measured"][way][load]
                assert [float(word) for word in said.split(", ")] == [
                    pytest.approx(figures[each], abs=0.51 if way == "skyray" else 0.051)
                    for each in ("p50_ms", "p99_ms")
                ]
    assert push["exact"] and f"of {push['compared']:,} updates none was missing" in " ".join(
        text_of("docs/operate.md").split()
    )


def test_performance_says_what_saved_searches_cost():
    text = " ".join(text_of("docs/performance.md").split())
    for name, words in (("1000000", 3), ("1000000-short", 1), ("4600000", 1)):
        rows = json.loads((RESULTS / f"saved-searches-{name}.json").read_text())["results"]
        ours = rows[0]
        assert all(row["exact"] for row in rows) and ours["engine"] == "cell_term"
        took = f"{ours['us_per_message']:.2f}" if words == 3 else f"{ours['us_per_message']:.1f}"
        assert took in text and f"{ours['alone_p99_ms']:.2f} ms" in text or name == "1000000-short"
        for row in rows[1:]:
            ratio = row["us_per_message"] / ours["us_per_message"]
            assert f"{ratio:.0f}" in text, (name, row["engine"])


def test_formats_lists_the_names_by_which_columns_are_found():
    rows = re.findall(r"^\| [^|]+ \| `(\w+)` \| ([^|]+) \| [^|]+ \|$", text_of("docs/formats.md"), re.MULTILINE)
    told = {role: {name.strip().replace("_", "") for name in names.split(",")} for role, names in rows}
    assert {role: told[role] for role in NAMES} == {role: {role, *names.split()} for role, names in NAMES.items()}
