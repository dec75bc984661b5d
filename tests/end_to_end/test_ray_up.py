"""`ray up` with the launch file, against three machines that share this kernel: runs there, a lost machine, `ray down`.

Each machine logs in by SSH, makes its environment by the launch file's own commands and keeps its own token; what it
installs are the wheels of this project and of Ray, all other libraries are borrowed from the environment of the tests.
The tests build on each other, in the order of the file.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support import machines
from tests.support.faulty_runs import FaultyRun, make_work
from tests.support.machines import HOME, SHARED, USER, Machine, yard_of
from tests.support.processes import ROOT, Command, command_line

pytestmark = [pytest.mark.cluster, pytest.mark.ray, pytest.mark.fault, pytest.mark.timeout(1200)]

#: Seconds that a step may take where many share few processors; nothing is measured by them.
LONG_S = 600
#: How soon the run has to work again after a machine is lost; it took 25 to 33 s on two busy processors. A run counts a
#: task as lost after 5 s of silence, Ray counts a node as lost after 5 to 10 s.
BACK_S = 60
#: What is changed in the launch file to submit jobs.
JOBS = {
    "head_setup_commands: []": "head_setup_commands:\n  - ~/skyray/venv/bin/pip install --quiet --constraint "
    "~/skyray/constraints.txt 'ray[default]'\n",
    "--include-dashboard=false": "--include-dashboard=true --dashboard-host=127.0.0.1",
}
#: Where people find Ray's and this project's commands once the launch file has run.
BINARIES = f"{HOME}/skyray/venv/bin"
#: Where Ray has the log files of a node.
RAY_LOGS = Path(tempfile.gettempdir(), "ray", "session_latest", "logs")


class Cluster(NamedTuple):
    """The yard, from which `ray up` was run, the head and the others; the folder that all of them have at /srv."""

    yard: Machine
    nodes: list[Machine]
    shared: Path

    @property
    def address(self) -> str:
        return f"{self.nodes[0].address}:6379"

    def ray(self, *words: str) -> list[str]:
        """A command line of Ray in the yard, as the user."""
        clean = ["env", "-i", f"HOME={HOME}", f"USER={USER}", f"PATH={os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED=0"]
        return [*self.yard.inside(), *clean, "RAY_AUTH_MODE=token", sys.executable, "-m", "ray.scripts.scripts", *words]

    def on_head(self, command: str) -> str:
        """What `ray exec` prints of a command that must end well."""
        return _ended(self.ray("exec", f"{SHARED}/cluster.yaml", command))


def _ended(command: list[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def _await(what, seconds: float = LONG_S) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.5)


def _wheels(shared: Path) -> None:
    """This project's and Ray's: the former where the launch file looks for it, the latter where pip does."""
    source = shared / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "tests", "__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _ended([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(shared / "skyray-cluster"), str(source)])
    constraints = ROOT / "constraints.txt"
    ray = ["--constraint", str(constraints), f"ray[default]=={metadata.version('ray')}"]
    _ended([*pip, "download", "--quiet", "--dest", str(shared / "wheels"), *ray])
    shutil.copy(constraints, shared / "skyray-cluster")
    shutil.rmtree(source)


def _launch_file(nodes: list[Machine]) -> str:
    """The one of the project, filled in; with this Python, and what `deploy/README.md` says for jobs."""
    text = (ROOT / "deploy" / "cluster.yaml").read_text()
    config = yaml.safe_load(text)["provider"]
    for placeholder, node in zip([config["head_ip"], *config["worker_ips"]], nodes, strict=True):
        text = text.replace(placeholder, node.address)
    readme = (ROOT / "deploy" / "README.md").read_text()
    for line, other in JOBS.items():
        assert line in text and other in readme
        text = text.replace(line, other)
    return text.replace("python3.11 ", f"python3.{sys.version_info.minor} ")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Up, as the instructions in `deploy/README.md` say."""
    assert not (lacking := machines.missing()), f"make test-cluster installs {lacking}"
    shared = tmp_path_factory.mktemp("shared")
    _wheels(shared)
    machines.borrowed_libraries(shared / "libraries")
    kernels = os.environ.get("SKYRAY_KERNEL_CACHE") or Path.home() / ".cache"
    environment = {
        "PYTHONPATH": f"{SHARED}/libraries",
        "PIP_NO_INDEX": "1",
        "PIP_NO_COMPILE": "1",
        "PIP_FIND_LINKS": f"{SHARED}/wheels",
        "SKYRAY_KERNEL_CACHE": str(kernels),
    }
    with yard_of(3, shared, environment) as (yard, *nodes):
        made = Cluster(yard, nodes, shared)
        (shared / "cluster.yaml").write_text(_launch_file(nodes))
        yard.run(f"cp -r {SHARED}/skyray-cluster {HOME}; cp {SHARED}/keys/user {HOME}/skyray-cluster/key")
        _ended(made.ray("get-auth-token", "--generate"))
        _ended(made.ray("up", "--yes", f"{SHARED}/cluster.yaml"))
        _await(lambda: _nodes(made) == 3)
        yield made
    shutil.rmtree(shared, ignore_errors=True)


def _nodes(cluster: Cluster) -> int:
    told = cluster.on_head(f"{BINARIES}/python -c \"import ray; ray.init('auto', logging_level=50); "
                           "print('alive', sum(node['Alive'] for node in ray.nodes()))\"")  # fmt: skip
    return int(told.rpartition("alive ")[2].split()[0])


@pytest.fixture(scope="module")
def work(cluster):
    """A run of five kinds, and what it tells on one machine."""
    return make_work(cluster.shared / "inputs", 6_000, 60)


class ClusterRun(FaultyRun):
    """Runs on the head by `ray exec`; the folders are those at /srv."""

    def __init__(self, cluster: Cluster, work, name: str):
        super().__init__(work, cluster.shared / name)
        self.cluster = cluster

    def begin(self, *more: object, by: str = "") -> Command:
        """`skyray run` on the cluster, where `by` begins the command that is typed on the head."""
        script = (
            "import os, shlex, sys\n"
            f"words = [word.replace({str(self.cluster.shared)!r}, {str(SHARED)!r}) for word in sys.argv[1:]]\n"
            f"ray = {self.cluster.ray('exec', f'{SHARED}/cluster.yaml')!r}\n"
            f"os.execvp(ray[0], [*ray, {by!r} + shlex.join(['skyray', *words])])\n"
        )
        return self.start("--address", self.cluster.address, *more, script=script)

    def verify(self) -> None:
        """On the head, where it must end well, which it does only if all is exact."""
        assert "exact" in self.cluster.on_head(f"skyray verify --all {SHARED / self.out.name}")


def test_launch_file_brings_up_a_cluster_whose_run_equals_that_of_one_machine(cluster, work):
    run = ClusterRun(cluster, work, "three")
    with run.begin("--query-bolts", 3) as command:
        run.finish(command, LONG_S)
    run.assert_exact(0)
    run.verify()


def test_job_submitted_to_the_cluster_equals_the_run_on_one_machine(cluster, work):
    run = ClusterRun(cluster, work, "job")
    with run.begin("--query-bolts", 3, by="ray job submit --address http://127.0.0.1:8265 -- ") as command:
        run.finish(command, LONG_S)
        assert "succeeded" in command.read()[0]
    run.assert_exact(0)
    run.verify()


#: Load tests that are submitted as jobs: a name, and options besides those of all.
LOADS = {
    "kinds": ["--rate", "300", "--seconds", "8", "--count", "boolean=3000", "--count", "topk=100",
              "--count", "knn=60", "--count", "decay=20", "--count", "skyline=20"],
    "filters": ["--rate", "300", "--seconds", "8", "--count", "boolean=3000", "--count", "topk=100",
                "--filters", "0.5", "--router", "location", "--changes", "100"],
    "hold": ["--hold", "5s", "--rate", "100", "--set", "loadtest.step_seconds=2", "--limit-p99-ms", "3000",
             "--count", "boolean=3000", "--count", "topk=100"],
}  # fmt: skip


def _loadtest(cluster: Cluster, name: str, options: list[str]) -> dict[str, Any]:
    """The report of a load test that was submitted as a job; its files are at /srv, which all machines see."""
    (cluster.shared / "temporary").mkdir(exist_ok=True)
    words = ["loadtest", "--address", cluster.address, "--query-bolts", "3", "--window", "count:1000", *options]
    words += ["--out", f"{SHARED}/{name}.json"]
    # the exit code is 1 where a busy machine cannot keep the rate
    job = f"env TMPDIR={SHARED}/temporary sh -c '{shlex.join(['skyray', *words])}; echo ended with $?'"
    said = cluster.on_head(f"ray job submit --address http://127.0.0.1:8265 -- {job}")
    assert "ended with 0" in said or "ended with 1" in said, said
    return json.loads((cluster.shared / f"{name}.json").read_text())


@pytest.mark.parametrize("name", LOADS)
def test_load_test_submitted_as_a_job_is_exact(cluster, name):
    report = _loadtest(cluster, name, [*LOADS[name], "--check"])
    check = report["check"]
    assert check["exact"] and check["compared"] > 1_000 and not check["not_checked"], check
    assert all(one["compared"] for one in check["by_kind"].values())
    assert ("ramp" in report) is (name == "hold") and report["settings"]["query_bolts"] == 3
    print(f"{name}: {check['compared']:,} updates exact, p99 {report['latency']['p99_s']:.3f} s")  # noqa: T201


def test_logs_of_tasks_are_where_ray_shows_them(cluster):
    listed = cluster.on_head(f"ls {RAY_LOGS}; ray logs 'skyray-*' || true")
    assert re.search(r"skyray-\w+-\d+\.log", listed)
    rows = [
        json.loads(line) for node in cluster.nodes for line in node.run(f"cat {RAY_LOGS}/skyray-*.log").splitlines()
    ]
    opened = {row["task"] for row in rows if row["event"] == "opened"}
    assert any("query:2" in task for task in opened) and any("messages:0" in task for task in opened), opened


def test_cluster_listens_on_its_own_network_alone_and_asks_for_a_token(cluster, work):
    assert not [each for each in machines.listening() if machines.NETWORK in each]
    for node in cluster.nodes:
        names = [command_line(each) for each in node.processes()]
        assert sum("raylet/raylet" in name for name in names) == 1
        own = json.loads(node.run("ip -json address", "net"))
        there = {address["local"] for link in own for address in link["addr_info"] if address["scope"] != "link"}
        assert there <= {node.address, "127.0.0.1", "::1"}
        addresses = {each.rpartition(":")[0].strip("[]") for each in node.listening()}
        assert node.address in addresses <= {node.address, "127.0.0.1", "0.0.0.0", "*"}
    run = f"skyray run --messages {SHARED}/inputs/etl --subscriptions {SHARED}/inputs/topk.jsonl --out {SHARED}/refused"
    for access in ("RAY_AUTH_TOKEN=" + "0" * 64, "RAY_AUTH_MODE=disabled"):
        said = cluster.on_head(f"{access} {run} --address {cluster.address} || echo ended with $?")
        assert "asks for a token" in said and "ended with 3" in said
    assert not (cluster.shared / "refused").exists()


def test_lost_machine_loses_nothing_and_the_run_is_back_soon(cluster, work):
    run = ClusterRun(cluster, work, "lost")
    lost = cluster.nodes[-1]
    with run.begin("--query-bolts", 3, "--set", "input.rate=150") as command:
        run.await_progress(command, 2)
        assert any(command_line(each).startswith("ray::WorkerActor") for each in lost.processes())

        def pull() -> None:
            lost.run("ip link set eth0 down", "net")
            lost.off()

        run.strike(command, pull)
        struck = time.monotonic()
        run.await_progress(command, 2)
        back_s = time.monotonic() - struck
        run.finish(command, LONG_S)
    print(f"back after {back_s:.1f} s")  # noqa: T201 - shown by pytest -s
    report = run.assert_exact(1)
    assert report["topology"]["recoveries"] and back_s < BACK_S
    run.verify()


def test_ray_down_leaves_nothing_running(cluster):
    _ended(cluster.ray("down", "--yes", f"{SHARED}/cluster.yaml"))

    def left() -> list[str]:
        lines = [command_line(each) for node in cluster.nodes[:-1] for each in node.processes()]
        return [line for line in lines if "/ray/" in line or line.startswith("ray::")]

    began = time.monotonic()
    _await(lambda: not left())
    print(f"the workers have ended after {time.monotonic() - began:.0f} s")  # noqa: T201 - shown by pytest -s
