"""What a command imports before it does anything, as the script `skyray` starts it."""

import importlib.util
import json
import os

import pytest

from tests.support.processes import Command

#: The script, which says at its end whether pandas has been imported.
SCRIPT = """
import sys
from gateway.entry import main
code = main()
print("pandas: ", sys.modules.get("pandas") is not None, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_stream_that_makes_arrays_does_without_pandas(tmp_path):
    rows = [
        {"subscribe": {"subscription_id": "s", "kind": "boolean", "keywords": "a", "region": [0, 0, 9, 9]}},
        {"id": "m", "text": "a", "lon": 1, "lat": 1},
    ]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = os.open(lines, os.O_RDONLY)
    with Command(["live", "--world", "earth", "--out", tmp_path / "out"], script=SCRIPT, source=source) as command:
        code, printed, said = command.finish()
    os.close(source)
    assert code == 0 and '"message_id":"m"' in printed, said
    assert "pandas:  False" in said


def test_doctor_still_finds_what_is_installed():
    with Command(["doctor", "--json"], script=SCRIPT) as command:
        code, printed, said = command.finish()
    assert code == 0, said
    assert json.loads(printed)
