"""What Schemathesis has to be taught about the API; it imports this by `SCHEMATHESIS_HOOKS`.

Lines of JSON are sent as they are. Streams have no end, so that updates are polled.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import schemathesis

from tests.support.processes import ROOT

#: A refusal of what no schema can say (words, shapes, tags of other versions) is no error.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "412", "413", "422", "429", "503"]

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "412", "413", "415", "422", "429"]
"""


#: Paths whose answer has no end, unless it is polled.
STREAMS = ("/v1/updates", "/v1/told")


@schemathesis.serializer("application/x-ndjson")
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value.encode(errors="replace") if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.hook
def filter_case(_: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """In a query every value is a text: `subscription=2.0`, meant as a wrong type, is an id like others."""
    wanted = (case.query or {}).get("subscription")
    return case.path not in STREAMS or wanted is None or isinstance(wanted, list)


@schemathesis.hook
def before_call(_: schemathesis.HookContext, case: schemathesis.Case, __: dict[str, Any]) -> None:
    if case.method == "GET" and case.path in STREAMS:
        case.query = {**(case.query or {}), "poll": "true", "wait_s": "0"}


def fuzz(port: int, folder: Path, *options: object, seconds: float) -> tuple[int, str]:
    """All checks over the API of a server; exit code, and what was found."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    words = [sys.executable, "-m", "schemathesis.cli", "--config-file", config, "--no-color", "run"]
    words += [f"http://127.0.0.1:{port}/openapi.json", "--checks", "all", "--continue-on-failure"]
    words += ["--request-timeout", 10, "--warnings", "off", *options]
    named = {"SCHEMATHESIS_HOOKS": "tests.support.fuzzing", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env={**os.environ, **named}, capture_output=True, text=True, timeout=seconds
    )
    return done.returncode, done.stdout + done.stderr
