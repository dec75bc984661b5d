"""What is used of Ray's private parts does what is expected of it, name by name; and no other file uses any."""

import inspect
import io
import logging
import re
import signal
from importlib import import_module
from pathlib import Path

import pytest
import ray
from ray._private import ray_constants, services, utils
from ray._private import worker as ray_worker
from ray._private.authentication import authentication_token_setup as authentication
from ray._private.node import Node

from gateway.shell import packages
from topology.core.executors import ray_private as private

ROOT = Path(__file__).parents[3]
PACKAGES = (*packages.PACKAGES, "deploy")
#: Files besides, which run where this project may not be installed.
ALONE = {"deploy/node.py": {"ray._private"}}


def found(name):
    """What a full name stands for."""
    module, part = name, []
    while module:
        try:
            value = import_module(module)
            break
        except ImportError:
            module, _, last = module.rpartition(".")
            part.insert(0, last)
    for each in part:
        value = getattr(value, each)
    return value


@pytest.mark.parametrize("name", private.NAMES)
def test_name_is_there(name):
    found(name)


def test_every_name_that_is_used_is_listed_and_only_there():
    used = {}
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*.py"):
            names = set(re.findall(r"(?<![\w./])ray(?:\.\w+)*\._(?!_)\w+(?:\.\w+)*", path.read_text()))
            if names:
                used[str(path.relative_to(ROOT))] = names
    (module,) = [path for path in used if path not in ALONE]
    assert module == "topology/core/executors/ray_private.py"
    assert all(any(listed.startswith(name) for listed in private.NAMES) for name in used.pop(module))
    assert used == ALONE


def test_options_of_ray_init_are_there():
    source = inspect.getsource(ray.init)
    assert all(f'"{name}"' in source for name in private.OPTION_NAMES)


def test_temporary_folder_is_that_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert private.own_temporary_folder() == str(tmp_path)


def test_address_file_is_below_the_folder_of_ray(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert private.address_file() == str(tmp_path / "ray" / "ray_current_cluster")


def test_loopback_stays_what_it_is_within_the_block_alone(monkeypatch):
    monkeypatch.setattr(ray_worker, "_global_node", None)
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda _address: "10.0.0.9")
    assert services.resolve_ip_for_localhost("127.0.0.1") == "10.0.0.9"
    with private.loopback_kept():
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
        assert services.get_node_ip_address() == "127.0.0.1"
    assert services.get_node_ip_address() == "10.0.0.9"


def test_variable_that_keeps_loopback_is_read_by_a_new_process():
    ((name, value),) = private.KEEP_LOOPBACK.items()
    source = inspect.getsource(ray_constants)
    assert re.search(r"ENABLE_RAY_CLUSTER = env_bool\(\s*ENABLE_RAY_CLUSTERS_ENV_VAR", source)
    assert name == ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR and value == "0"


def test_handlers_of_signals_are_those_of_ray_outside_the_block_alone():
    before, handler = signal.getsignal(signal.SIGTERM), lambda *_: None
    signal.signal(signal.SIGTERM, handler)
    try:
        with private.signals_kept():
            utils.set_sigterm_handler(lambda *_: None)
            assert signal.getsignal(signal.SIGTERM) is handler
            assert ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER
        assert not ray_constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER
        utils.set_sigterm_handler(signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    for module in (ray_worker, Node):
        assert "ray._private.utils.set_sigterm_handler(" in inspect.getsource(module)
    assert "RAY_DISABLE_FAILURE_SIGNAL_HANDLER" in inspect.getsource(ray_worker) + inspect.getsource(ray_constants)


def test_output_of_workers_goes_to_standard_error_within_the_block(monkeypatch, capsys):
    data = {"ip": "1", "localhost": "1", "pid": "raylet", "lines": ["a warning"], "is_err": False, "job": None}
    data |= {"actor_name": None, "task_name": None}
    with private.stdout_kept():
        ray_worker.print_worker_logs(dict(data), io.StringIO())
    shown = capsys.readouterr()
    assert "a warning" in shown.err and shown.out == ""


def test_dead_process_is_asked_of_the_node_of_this_process(monkeypatch):
    class Died:
        returncode, pid = -9, 77

    class Ours:
        def dead_processes(self):
            return [(ray_constants.PROCESS_TYPE_RAYLET, Died())]

    assert list(inspect.signature(Node.dead_processes).parameters) == ["self"]
    monkeypatch.setattr(ray_worker, "_global_node", None)
    assert private.dead_process() is None
    monkeypatch.setattr(ray_worker, "_global_node", Ours())
    assert private.dead_process() == "the raylet of Ray (process 77, killed by signal 9) has died"
    kinds = inspect.getsource(Node)
    assert "PROCESS_TYPE_RAYLET" in kinds and "PROCESS_TYPE_GCS_SERVER" in kinds


def test_token_is_shown_without_a_word(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    level = authentication.logger.level
    with caplog.at_level(logging.DEBUG):
        private.use_token()
    assert authentication.logger.level == level and not caplog.records


def test_new_ray_of_this_process_asks_for_a_token_by_default():
    """So a Ray of our own has one, on loopback."""
    assert "enable_token_auth_by_default()" in inspect.getsource(ray.init)
