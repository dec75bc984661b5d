"""What `deploy/` has for a server that is operated: unit, alarms; they fit what the server does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.metrics import sink_families
from gateway.shell.exit_codes import CODES

ROOT = Path(__file__).resolve().parents[3]
SERVICE, PROMETHEUS = ROOT / "deploy" / "service", ROOT / "deploy" / "prometheus"


def ran(*command, cwd=None):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=cwd)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit_is_one_that_systemd_takes(tmp_path):
    unit = tmp_path / "skyray.service"
    unit.write_text((SERVICE / "skyray.service").read_text().replace("/opt/skyray/bin/skyray", "/bin/true"))
    done = ran("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stderr) == (0, ""), done
    unit.write_text(unit.read_text().replace("TimeoutStopSec=60", "TimeoutStop=60"))
    assert "TimeoutStop" in ran("systemd-analyze", "verify", unit).stderr, "an unknown name is not noticed"


def test_unit_starts_again_after_what_may_pass_and_not_after_what_stays():
    text = (SERVICE / "skyray.service").read_text()
    stays = {int(code) for code in re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)[0].split()}
    assert stays < {one.code for one in CODES if not one.again} and 0 not in stays


@pytest.mark.promtool
def test_each_alarm_goes_off_where_it_should_and_nowhere_else(tmp_path):
    shutil.copytree(PROMETHEUS, tmp_path / "rules")
    assert ran("promtool", "check", "rules", "alarms.yml", cwd=tmp_path / "rules").returncode == 0
    done = ran("promtool", "test", "rules", "alarms_test.yml", cwd=tmp_path / "rules")
    assert done.returncode == 0, done.stdout + done.stderr
    alarms = tmp_path / "rules" / "alarms.yml"
    alarms.write_text(alarms.read_text().replace("skyray_sink_up == 0", "skyray_sink_up == 1"))
    assert ran("promtool", "test", "rules", "alarms_test.yml", cwd=tmp_path / "rules").returncode != 0


def test_alarms_ask_for_figures_that_the_server_has():
    asked = set(re.findall(r"skyray_(\w+)", (PROMETHEUS / "alarms.yml").read_text()))
    there = "".join((ROOT / name).read_text() for name in ("gateway/metrics.py", "gateway/sinks/webhooks/figures.py"))
    figures = {"up": 1, "waiting": 0, "delivered": 0, "lost": 0, "released": 0, "reconnects": 0, "state": "away"}
    of_sinks = {family.name.removeprefix("skyray_") for family in sink_families([{"name": "s", **figures}])}
    assert len(asked) > 8
    plain = [name.removesuffix("_total") for name in sorted(asked)]
    assert [name for name in plain if f'"{name}"' not in there and name not in of_sinks] == []
