"""Container file, compose file and manifests: they fit the project, each other, and strict definitions of KubeRay."""

import json
import os
import shlex
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import pytest
import typer
import yaml

from gateway import cli

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KINDS = {"RayCluster": "raycluster.yaml", "RayJob": "rayjob.yaml"}
MANIFESTS = {kind: yaml.safe_load((DEPLOY / "kubernetes" / name).read_text()) for kind, name in KINDS.items()}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Folder with KubeRay's ray.io_rayclusters.yaml and ray.io_rayjobs.yaml (ray-operator/config/crd/bases).
CRDS = os.environ.get("KUBERAY_CRDS")
#: The file schema/compose-spec.json of the repository compose-spec/compose-spec.
COMPOSE_SCHEMA = os.environ.get("COMPOSE_SCHEMA")


def strict(schema):
    """The schema, in which an object has no other fields than those it names."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(part) for name, part in schema.items()}
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def cluster_of(kind):
    spec = MANIFESTS[kind]["spec"]
    return spec["rayClusterSpec"] if kind == "RayJob" else spec


def pods_of(kind):
    cluster = cluster_of(kind)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


@pytest.mark.skipif(
    CRDS is None, reason="needs KUBERAY_CRDS, a folder with KubeRay's definitions: see deploy/README.md"
)
@pytest.mark.parametrize("kind", KINDS)
def test_manifest_fits_the_definition_of_kuberay_made_strict(kind):
    definition = yaml.safe_load((Path(CRDS) / f"ray.io_{kind.lower()}s.yaml").read_text())
    (version,) = [part for part in definition["spec"]["versions"] if part["name"] == "v1"]
    validator = jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))
    manifest = json.loads(json.dumps(MANIFESTS[kind]))
    assert not [f"{list(fault.path)}: {fault.message}" for fault in validator.iter_errors(manifest)]
    for pod in pods_of(kind):
        pod["container"] = []
    try:
        assert len(list(validator.iter_errors(MANIFESTS[kind]))) == 2, "a wrong field is not noticed"
    finally:
        for pod in pods_of(kind):
            del pod["container"]


@pytest.mark.parametrize("kind", KINDS)
def test_manifest_asks_for_the_token_and_runs_the_tested_ray_without_root(kind):
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    cluster = cluster_of(kind)
    assert MANIFESTS[kind]["kind"] == kind and cluster["rayVersion"] == pinned["ray"]
    assert cluster["authOptions"] == {"mode": "token"}
    for pod in pods_of(kind):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["image"].endswith(f"/skyray:{PROJECT['project']['version']}")
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert cluster_of("RayJob") == cluster_of("RayCluster")


def test_job_of_kuberay_runs_a_command_that_there_is_and_that_fits_the_workers():
    words = shlex.split(MANIFESTS["RayJob"]["spec"]["entrypoint"])
    given = parsed(words)
    settings = given["settings"]
    assert str(given["resume"]) == "auto" and settings["address"] == "auto"
    (workers,) = cluster_of("RayJob")["workerGroupSpecs"]
    requests = workers["template"]["spec"]["containers"][0]["resources"]["requests"]
    cpus = settings["query_bolts"] * settings["query_cpus"]
    assert 0 < settings["query_cpus"] <= int(requests["cpu"]) and cpus <= workers["maxReplicas"] * int(requests["cpu"])
    assert MANIFESTS["RayJob"]["spec"]["backoffLimit"] > 0


def parsed(words):
    """The options of a `skyray` command line."""
    assert words[0] == "skyray"
    command = typer.main.get_command(cli.app).commands[words[1]]  # type: ignore[attr-defined]
    context = command.make_context(words[1], words[2:])
    settings = {name: value for name, value in context.params.items() if value is not None}
    return settings | {"settings": settings}


def test_compose_file_mounts_what_is_there_and_serves_by_a_command_that_there_is():
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert source in volumes or (DEPLOY / source).exists(), mount
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    given = parsed(["skyray", *services["serve"]["command"]])
    assert given["host"] == "0.0.0.0" and given["allowed_host"] == ["serve"] and str(given["out"]) == "/data/serve"
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == [f"serve:{given['port']}"]
    build = services["serve"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert services["serve"]["image"] == f"skyray:{PROJECT['project']['version']}"


@pytest.mark.skipif(COMPOSE_SCHEMA is None, reason="needs COMPOSE_SCHEMA, Compose's schema: see deploy/README.md")
def test_compose_file_fits_the_schema_of_compose():
    validator = jsonschema.Draft7Validator(json.loads(Path(COMPOSE_SCHEMA).read_text()))
    given = json.loads(json.dumps(COMPOSE))
    assert not [f"{list(fault.path)}: {fault.message}" for fault in validator.iter_errors(given)]
    given["services"]["serve"]["port"] = []
    assert len(list(validator.iter_errors(given))) == 1, "a wrong field is not noticed"


@pytest.mark.promtool
def test_figures_of_the_compose_file_are_scraped_by_a_file_that_prometheus_takes():
    file = DEPLOY / "compose" / "prometheus.yml"
    done = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", file], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_container_file_copies_every_package_and_ends_as_a_user_without_rights():
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and len(line.split()) == 3}
    assert {name.partition(".")[0] for name in PROJECT["tool"]["setuptools"]["packages"]} <= copied
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
    assert sum(line.startswith("FROM") for line in lines) == 2
