"""The cluster launch file is one that `ray up` accepts."""

from pathlib import Path

import yaml
from ray.autoscaler._private.util import fillout_defaults, validate_config

LAUNCH_FILE = Path(__file__).parents[3] / "deploy" / "cluster.yaml"


def test_cluster_launch_file_passes_ray_s_own_validation():
    config = yaml.safe_load(LAUNCH_FILE.read_text())
    filled = fillout_defaults(config)
    validate_config(filled)
    assert filled["provider"]["type"] == "local" and filled["max_workers"] == len(config["provider"]["worker_ips"])


def test_cluster_launch_file_mounts_what_the_setup_installs():
    config = yaml.safe_load(LAUNCH_FILE.read_text())
    setup = " ".join(config["setup_commands"])
    assert all(target in setup for target in config["file_mounts"])
    root = LAUNCH_FILE.parents[1]
    assert (root / config["file_mounts"]["/opt/skyray/constraints.txt"]).exists()
