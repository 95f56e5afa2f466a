"""The files that start clusters, held against the tools that read them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from toy_scorers import wait_for

from cluster.commands.run import run
from pac_core.cli import main

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "cluster" / "configs"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((CONFIGS / name).read_text())
    return document


@pytest.mark.parametrize("name", ["aws.yaml", "machines.yaml"])
def test_the_cluster_launcher_accepts_its_files(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(read(name))
    validate_config(config)
    kinds = config["available_node_types"]
    assert config["head_node_type"] in kinds
    if name == "machines.yaml":
        assert config["docker"]["worker_image"].endswith("-gpu")


def test_the_cloud_has_workers_of_both_kinds() -> None:
    kinds = read("aws.yaml")["available_node_types"]
    assert [kinds[kind]["resources"].get("GPU", 0) for kind in ("head", "cpu_workers", "gpu_workers")] == [
        0,
        0,
        1,
    ]


INT32 = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
TEXT, FLAG, TEXTS = {"type": "string"}, {"type": "boolean"}, {"additionalProperties": {"type": "string"}}
TEMPLATE = {"type": "object", "required": ["spec"]}  # the pod itself is held against Kubernetes' own schema


def fields(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """The schema of an object with these fields and no others, which the API server would drop."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


HEAD = fields(("rayStartParams", "template"), rayStartParams=TEXTS, template=TEMPLATE)
WORKERS = fields(
    ("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    groupName=TEXT,
    replicas=INT32,
    minReplicas=INT32,
    maxReplicas=INT32,
    rayStartParams=TEXTS,
    template=TEMPLATE,
)
CLUSTER = fields(
    ("headGroupSpec",),
    headGroupSpec=HEAD,
    workerGroupSpecs={"type": "array", "items": WORKERS},
    rayVersion=TEXT,
    authOptions=fields(("mode",), mode={"enum": ["disabled", "token"]}),
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=fields(
        idleTimeoutSeconds=INT32, upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]}
    ),
)
RAYJOB = fields(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=fields(("name",), name=TEXT),
    spec=fields(
        entrypoint=TEXT,
        shutdownAfterJobFinishes=FLAG,
        ttlSecondsAfterFinished=INT32,
        backoffLimit=INT32,
        rayClusterSpec=CLUSTER,
    ),
)
"""Names and types of the fields we use, written by hand from KubeRay's API ray.io/v1 (its *_types.go)."""


def test_the_rayjob_is_one_that_kuberay_reads() -> None:
    job = read("rayjob.yaml")
    jsonschema.Draft202012Validator(RAYJOB).validate(job)
    cluster = job["spec"]["rayClusterSpec"]
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert set(groups) == {"cpu", "gpu"}
    limits = groups["gpu"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    for group in (cluster["headGroupSpec"], *groups.values()):
        valid_pod(group["template"]["spec"])


@pytest.mark.parametrize("change", [{"ttlSecondsAfterFinished": "300"}, {"shutDownAfterJobFinishes": True}])
def test_a_rayjob_with_another_type_or_name_is_noticed(change: dict[str, Any]) -> None:
    job = read("rayjob.yaml")
    job["spec"] |= change
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(RAYJOB).validate(job)


def valid_pod(spec: dict[str, Any]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.31", strict=True)


@pytest.mark.parametrize("name", ["aws.yaml", "machines.yaml", "rayjob.yaml"])
def test_commands_in_the_files_are_commands_we_have(name: str) -> None:
    text = re.sub(r"\s*\\?\n#?\s*", " ", (CONFIGS / name).read_text())
    found = re.findall(
        r"(?:pac submit --address \S+|python -P -m pac_core) (run rl .*?)(?= ray | #|  |$)", text
    )
    assert found
    known = {option for parameter in run.get_command(None, "rl").params for option in parameter.opts}
    for command in found:
        asked = set(re.findall(r"--[a-z-]+", command.split(" shutdownAfter")[0]))
        assert asked - {"--head", "--autoscaling-config"} <= known


def test_every_file_has_the_versions_we_test_with() -> None:
    constraints = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    ray = constraints["ray"]
    assert f"rayproject/ray:{ray}-py311" in (CONFIGS / "Dockerfile").read_text()
    image = (CONFIGS / "Dockerfile").read_text()
    assert f"torch=={constraints['torch']}" in image
    assert re.search(rf"^ARG BASE=rayproject/ray:{re.escape(ray)}-py311-cpu$", image, re.MULTILINE)
    assert read("rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == ray
    lines = (CONFIGS / "requirements.txt").read_text().splitlines()
    listed = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    assert listed["s3fs"] == listed["fsspec"], "s3fs asks for its own fsspec"
    assert f"s3fs=={listed['s3fs']} gcsfs=={listed['gcsfs']}\n" in image
    shared = set(listed) & set(constraints)
    assert len(shared) >= 12
    assert {name: listed[name] for name in shared} == {name: constraints[name] for name in shared}


def test_the_image_copies_every_package_and_installs_mbrl_alone() -> None:
    text = (CONFIGS / "Dockerfile").read_text()
    for name in ("pac_core", "pac_rl", "pac_vision", "cluster"):
        assert f" {name} {name}\n" in text
    for copied in re.findall(r"^COPY --chown=\S+ (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / path).exists() for path in copied.split())
    assert "--no-deps mbrl==0.2.0" in text
    makefile = (ROOT / "Makefile").read_text()
    assert "--no-deps mbrl==0.2.0" in makefile


RAY = str(Path(sys.executable).with_name("ray"))
JOIN = """
import sys, time
from cluster import connected
with connected(sys.argv[1]):
    import ray
    end = time.monotonic() + 1200
    while sum(node["Alive"] for node in ray.nodes()) < 2 and time.monotonic() < end:
        time.sleep(0.2)
    print(ray.get(ray.remote(num_cpus=1)(lambda: sys.platform).remote(), timeout=1200))
"""


def at(home: Path, **more: str) -> dict[str, str]:
    """The environment of a machine with this home, where nothing is said of tokens but by its files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"} | more


@pytest.fixture
def homes(tmp_path: Path) -> dict[str, Path]:
    """Homes of a user who made a token, and of machines to which the launcher copied it; one has none."""
    found = {name: tmp_path / name for name in ("user", "head", "worker", "stranger")}
    for home in found.values():
        home.mkdir()
    made = [RAY, "get-auth-token", "--generate"]
    subprocess.run(made, env=at(found["user"]), check=True, capture_output=True)
    [(there, here)] = read("machines.yaml")["file_mounts"].items()
    for name in ("head", "worker"):
        target = Path(there.replace("~", str(found[name])))
        target.parent.mkdir(parents=True)
        shutil.copy(here.replace("~", str(found["user"])), target)
    return found


@pytest.mark.doors
@pytest.mark.xdist_group("head")
def test_machines_with_the_token_join_and_others_are_refused(homes: dict[str, Path], tmp_path: Path) -> None:
    """The start commands of the file, as they stand but for ports, folders and what a launcher needs."""
    files, port = read("machines.yaml"), 0
    with tempfile.TemporaryDirectory() as short, ExitStack() as machines:  # sockets have short names

        def command(role: str, *more: str) -> list[str]:
            line = files[f"{role}_start_ray_commands"][-1].replace("6379", str(port))
            line = line.replace(" --autoscaling-config=~/ray_bootstrap_config.yaml", "")
            return ["bash", "-c", " ".join((line.replace("ray start", f"exec {RAY} start"), *more))]

        def start(role: str, *options: str) -> None:
            """A machine that runs until the end of the test; on a busy one Ray gives up after 30 seconds."""
            more = ["--block", f"--dashboard-agent-listen-port={free_port()}", *options]
            env, log = at(homes[role], RAY_HEAD_IP="127.0.0.1"), tmp_path / "log"
            with log.open("w") as said:
                process = subprocess.Popen(command(role, *more), env=env, stdout=said, stderr=said)
            machines.callback(process.wait)
            machines.callback(process.terminate)
            wait_for(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None)
            if process.poll() is not None:
                assert "timed out during startup" in log.read_text()
                raise TimeoutError

        for _ in range(5):
            port = free_port()
            with contextlib.suppress(TimeoutError):
                client = f"--ray-client-server-port={free_port()}"
                start("head", "--include-dashboard=false", f"--temp-dir={short}/{port}", client)
                start("worker", "--num-cpus=1")
                break
        joined = [sys.executable, "-c", JOIN, f"127.0.0.1:{port}"]
        done = subprocess.run(joined, env=at(homes["user"]), capture_output=True, text=True, check=False)
        assert done.stdout.endswith(f"{sys.platform}\n"), done
        unaware = [RAY, "start", f"--address=127.0.0.1:{port}"]  # no token, and no word of one
        strangers = [
            subprocess.Popen(
                line, env=at(homes["stranger"], RAY_HEAD_IP="127.0.0.1"), stderr=subprocess.PIPE, text=True
            )
            for line in (command("worker"), unaware)
        ]
        for stranger, said in zip(
            strangers, ("no authentication token was found", "InvalidAuthToken"), strict=True
        ):
            assert said in stranger.communicate()[1]
            assert stranger.returncode != 0


@pytest.mark.parametrize("name", ["aws.yaml", "machines.yaml"])
def test_every_machine_asks_for_the_token_that_it_was_given(name: str) -> None:
    files = read(name)
    assert files["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "--env RAY_AUTH_MODE=token" in files["docker"]["run_options"]
    for role in ("head", "worker"):
        starts = [line for line in files[f"{role}_start_ray_commands"] if "ray start" in line]
        assert len(starts) == 1
        assert "RAY_AUTH_MODE=token ray start" in starts[0]
    assert "ray get-auth-token --generate" in (CONFIGS / name).read_text()
    assert read("rayjob.yaml")["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}


def test_nothing_that_looks_like_a_key_is_in_the_files() -> None:
    for path in CONFIGS.iterdir():
        assert not re.search(r"(AKIA[0-9A-Z]{16}|secret_access_key|password:)", path.read_text())
    assert {"run", "tune", "submit"} <= set(main.list_commands(None))  # type: ignore[arg-type]
