"""The ETL as a process of its own: what it says where it fails, and that its Java ends with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import matching
from tests.support.covering import tiered
from tests.support.etl_folder import write_lines

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("changes", [{"master": "local[none]"}, {"driver_memory": "lots"}], ids=str)
def test_session_bad_setting_is_named_and_leaves_no_java(tmp_path, changes):
    source = write_lines(tmp_path / "raw.jsonl", {"text": "one", "lat": 1, "lon": 1})
    process = start_alone(source, tmp_path / "out", tmp_path / "elsewhere", **changes)
    _, complained = process.communicate(timeout=300)
    (value,) = changes.values()
    assert process.returncode == 1 and "ConfigError: Spark does not start with" in complained and value in complained
    await_nothing_left(process.pid, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "raw.jsonl"]


OWN_PROCESS = """
import sys
from spark_etl.job import EtlOptions, run_etl
options = EtlOptions(inputs=(sys.argv[1],), out=sys.argv[2], master=sys.argv[3], driver_memory=sys.argv[4])
def tell(progress):
    print(progress.stage, progress.seconds is None, flush=True)
print(run_etl(options, tell)["kept"], flush=True)
"""


def start_alone(
    source: Path, out: Path, folder: Path, master: str = "local[2]", driver_memory: str = "1g"
) -> subprocess.Popen:
    """Run the ETL in a process and process group of its own, from a folder with misleading modules in it."""
    for name in ("matching", "spark_etl"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise ImportError('not this one')")
    environment = os.environ | {"PYTHONPATH": str(Path(matching.__file__).parents[1]), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", OWN_PROCESS, str(source), str(out), master, driver_memory]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_of(session: int) -> list[str]:
    """Command lines of what still runs in a session of processes."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found.append((entry / "cmdline").read_text().replace("\0", " ")[:200])
        except OSError:
            continue
    return found


def await_nothing_left(session: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := processes_of(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.long
def test_etl_alone_failing_within_spark_shows_its_error_alone(tmp_path):
    source = write_lines(tmp_path / "raw.jsonl", b"nonsense")
    process = start_alone(source, tmp_path / "out", tmp_path / "elsewhere")
    _, complained = process.communicate(timeout=300)
    assert complained.count("Traceback") == 1 and "InputError: no row of the input is usable" in complained
    await_nothing_left(process.pid, 20)


@pytest.mark.wide
def test_etl_alone_ends_its_java_and_says_nothing_on_the_terminal(tmp_path):
    source = write_lines(tmp_path / "raw.jsonl", {"text": "one", "lat": 1, "lon": 1})
    process = start_alone(source, tmp_path / "out", tmp_path / "elsewhere")
    said, complained = process.communicate(timeout=300)
    assert (process.returncode, complained) == (0, "")
    assert said.splitlines()[-1] == "1"
    await_nothing_left(process.pid, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "out", "raw.jsonl"]
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["matching", "spark_etl"]


LATE_COMMANDS = """
import sys, threading, time
from contextlib import suppress
from pathlib import Path
from py4j.protocol import Py4JError
from spark_etl.options import EtlOptions
from spark_etl.session import spark_session

def take(queue):
    with suppress(Py4JError):
        queue.take()
        print("taken", flush=True)

with spark_session(EtlOptions(inputs=("-",), master="local[1]", driver_memory="512m"), Path(sys.argv[1])) as spark:
    java = spark._jvm.java
    released_later, queue = java.util.ArrayList(), java.util.concurrent.LinkedTransferQueue()
    under_way = threading.Thread(target=take, args=(queue,))
    under_way.start()
    while not queue.hasWaitingConsumer():
        time.sleep(0.01)
under_way.join()
with suppress(Py4JError):
    released_later.size()
    print("answered", flush=True)
del released_later, queue
print("ended", flush=True)
"""


@pytest.mark.long
def test_session_commands_under_way_or_late_say_nothing_when_java_ends(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(matching.__file__).parents[1])}
    command = [sys.executable, "-W", "ignore::FutureWarning", "-c", LATE_COMMANDS, str(tmp_path / "scratch")]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("stage", tiered(["start", "clean", "vocabulary"], 3))
def test_etl_interrupted_leaves_no_output_and_no_java(tmp_path, stage):
    rows = [{"id": str(n), "text": f"word{n % 997} and some more", "lat": 1, "lon": n % 180} for n in range(20_000)]
    source = write_lines(tmp_path / "raw.jsonl", *rows)
    process = start_alone(source, tmp_path / "out", tmp_path / "elsewhere")
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == [stage, "True"]:
            break
    else:
        pytest.fail("the stage never began")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the job
    said, complained = process.communicate(timeout=300)
    assert process.returncode not in (0, None) and "KeyboardInterrupt" in complained, (said, complained)
    await_nothing_left(process.pid, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "raw.jsonl"]
