"""`skyray doctor`: whether this machine has what Skyray needs."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.shell.options import Command, Json, example
from gateway.shell.terminal import Terminal, table

app = typer.Typer()


@app.command(cls=Command, epilog=example("skyray doctor --json"))
def doctor(
    out: Annotated[Path, typer.Option(help="Folder where runs will be written.")] = Path("runs"),
    json: Json = False,
) -> int:
    """Check Java, cores, memory, shared memory, disk and packages; print the remedy for each fault."""
    from gateway.shell.doctor import examine

    findings = examine(out)
    failed = any(finding.state == "fail" for finding in findings)
    payload = {"ok": not failed, "findings": [finding._asdict() for finding in findings]}
    rows = [(finding.state, finding.name, finding.found, finding.remedy) for finding in findings]
    Terminal(json).answer(payload, lambda console: console.print(table(("", "what", "found", "remedy"), rows)))
    return int(failed)
