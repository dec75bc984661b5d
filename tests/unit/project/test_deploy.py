"""The cluster launch files are ones that `ray up` accepts, and that let nobody in without a token."""

import tomllib
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import hash_runtime_conf, prepare_config, validate_config

ROOT = Path(__file__).parents[3]
NAMES = ("cluster.yaml", "cluster-aws.yaml")
CONFIGS = {name: yaml.safe_load((ROOT / "deploy" / name).read_text()) for name in NAMES}


@pytest.fixture(params=NAMES)
def config(request):
    return CONFIGS[request.param]


def test_cluster_launch_file_passes_ray_s_own_validation(config):
    prepared = prepare_config(config)
    validate_config(prepared)
    types = prepared["available_node_types"]
    provider = config["provider"]
    assert provider["type"] == ("local" if config is CONFIGS["cluster.yaml"] else "aws")
    (workers,) = {each["min_workers"] for each in types.values()} - {0}
    assert workers == prepared["max_workers"] == len(provider.get("worker_ips", (1, 2)))


def test_cluster_launch_file_that_ray_does_not_know_is_refused(config):
    with pytest.raises(Exception, match="worker_startup"):
        validate_config(prepare_config(config | {"worker_startup": []}))


def test_cluster_launch_file_mounts_what_the_setup_installs(config):
    setup = " ".join(config["setup_commands"])
    assert all(target in setup for target in config["file_mounts"])
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"skyray-{release}-py3-none-any.whl" in {Path(local).name for local in config["file_mounts"].values()}


def test_cluster_in_containers_has_the_ray_of_its_image():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert CONFIGS["cluster-aws.yaml"]["docker"]["image"].startswith(f"rayproject/ray:{pinned['ray']}-py311")


@pytest.mark.parametrize("name", NAMES)
def test_cluster_launch_file_finds_what_it_mounts_from_any_folder(name, tmp_path, monkeypatch):
    """Ray reads the files where `ray up` is typed; they are where the instructions put them."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    locals_ = list(CONFIGS[name]["file_mounts"].values())
    for local in locals_:
        file = Path(local).expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert not list(Path.cwd().iterdir())
    hash_runtime_conf(CONFIGS[name]["file_mounts"], None, {})
    (folder,) = {str(Path(local).parent) for local in locals_} - {"~/.ray"}
    for told in (name, "README.md"):
        text = (ROOT / "deploy" / told).read_text()
        assert f"python -m pip wheel --no-deps --wheel-dir {folder} ." in text
        assert f"cp constraints.txt {folder}" in text


def test_cluster_launch_file_asks_for_a_token_and_writes_below_the_home_of_its_user(config):
    starts = [line for role in ("head", "worker") for line in config[f"{role}_start_ray_commands"] if " start " in line]
    assert len(starts) == 2 and all(line.startswith("RAY_AUTH_MODE=token ") for line in starts)
    assert all(target.startswith("~/") for target in config["file_mounts"])


def test_deploy_folder_never_turns_the_token_off():
    texts = [path.read_text() for path in (ROOT / "deploy").iterdir() if path.is_file()]
    assert len(texts) >= 5 and not any("RAY_AUTH_MODE=disabled" in text for text in texts)
