"""The cluster launch file is one that `ray up` accepts, and that lets nobody in without a token."""

import tomllib
from pathlib import Path

import yaml
from ray.autoscaler._private.util import fillout_defaults, hash_runtime_conf, validate_config

ROOT = Path(__file__).parents[3]
CONFIG = yaml.safe_load((ROOT / "deploy" / "cluster.yaml").read_text())


def test_cluster_launch_file_passes_ray_s_own_validation():
    filled = fillout_defaults(CONFIG)
    validate_config(filled)
    assert filled["provider"]["type"] == "local" and filled["max_workers"] == len(CONFIG["provider"]["worker_ips"])


def test_cluster_launch_file_mounts_what_the_setup_installs():
    setup = " ".join(CONFIG["setup_commands"])
    assert all(target in setup for target in CONFIG["file_mounts"])
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"skyray-{release}-py3-none-any.whl" in {Path(local).name for local in CONFIG["file_mounts"].values()}


def test_cluster_launch_file_finds_what_it_mounts_from_any_folder(tmp_path, monkeypatch):
    """Ray reads the files where `ray up` is typed; they are where the instructions put them."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    locals_ = list(CONFIG["file_mounts"].values())
    for local in locals_:
        file = Path(local).expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert not list(Path.cwd().iterdir())
    hash_runtime_conf(CONFIG["file_mounts"], None, {})
    (folder,) = {str(Path(local).parent) for local in locals_} - {"~/.ray"}
    for name in ("cluster.yaml", "README.md"):
        text = (ROOT / "deploy" / name).read_text()
        assert f"python -m pip wheel --no-deps --wheel-dir {folder} ." in text
        assert f"cp constraints.txt {folder}" in text


def test_cluster_launch_file_asks_for_a_token_and_writes_below_the_home_of_its_user():
    starts = [line for role in ("head", "worker") for line in CONFIG[f"{role}_start_ray_commands"] if " start " in line]
    assert len(starts) == 2 and all(line.startswith("RAY_AUTH_MODE=token ") for line in starts)
    assert all(target.startswith("~/") for target in CONFIG["file_mounts"])


def test_deploy_folder_never_turns_the_token_off():
    texts = [path.read_text() for path in (ROOT / "deploy").iterdir() if path.is_file()]
    assert len(texts) >= 4 and not any("RAY_AUTH_MODE=disabled" in text for text in texts)
