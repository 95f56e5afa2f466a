"""A run as a job of a Ray cluster: submitted, watched, stopped."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from cluster.session import set_environment
from pac_core import InvalidInput
from pac_core.cli import FILE, say
from pac_core.files import refuse_secrets
from pac_core.runs import OURS

ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}


def runtime_env(requirements: Path | None = None) -> dict[str, Any]:
    """What the cluster's machines need to run us: our packages, as they are here.

    requirements: a fully pinned list, installed as it stands, without dependencies (mbrl-lib's own pins
        contradict the versions we need); None where the machines have an image with everything
    """
    import cluster

    home = Path(cluster.__file__).parent.parent
    env: dict[str, Any] = {
        "py_modules": [str(home / name) for name in OURS],
        "env_vars": {"RAY_USAGE_STATS_ENABLED": "0"},
    }
    if requirements is not None:
        env["pip"] = {"packages": pinned(requirements), "pip_install_options": ["--no-deps"]}
    return env


def pinned(requirements: Path) -> list[str]:
    """The lines of a requirements file, refused unless each names one version."""
    lines = [line.split("#")[0].strip() for line in requirements.read_text().splitlines()]
    wanted = [line for line in lines if line]
    loose = [line for line in wanted if "==" not in line]
    if loose or not wanted:
        raise InvalidInput(
            f"{requirements} must pin each package as name==version, got {loose[:1] or 'none'}"
        )
    return wanted


def start_job(arguments: Sequence[str], *, address: str, requirements: Path | None = None) -> str:
    """Starts `pac` with these arguments as a Ray job; returns its id.

    address: of the cluster's dashboard, such as http://127.0.0.1:8265

    The job's arguments stand in Ray's table of jobs, so a URL with credentials is refused. Python is told
    not to look into the folder in which the job starts: what was shipped is run, whatever lies there.
    """
    if not re.fullmatch(r"https?://[^/\s]+/?", address):
        raise InvalidInput(f"--address must be that of a dashboard, http://HOST:8265, got {address!r}")
    for argument in arguments:
        for url in re.findall(r"[A-Za-z][\w+.-]*://.*", argument):
            refuse_secrets(url)
    set_environment()
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        return str(
            client.submit_job(
                entrypoint=shlex.join(["python", "-P", "-m", "pac_core", *arguments]),
                runtime_env=runtime_env(requirements),
            )
        )
    except (ConnectionError, RuntimeError, RayError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise InvalidInput(f"--address {address}: the cluster does not take the job ({reason})") from None


def follow(job: str, *, address: str, show: Callable[[str], Any], every: float = 1.0) -> str:
    """Shows what the job prints until it ends; returns how it ended."""
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(address)

    async def tail() -> None:
        async for lines in client.tail_job_logs(job):
            show(lines)

    asyncio.run(tail())
    while (status := str(client.get_job_status(job).value)) not in ENDED:  # the connection may break
        time.sleep(every)
    return status


@click.command("submit", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--address", required=True, help="The cluster's dashboard: http://HOST:8265.")
@click.option("--requirements", type=FILE, help="Fully pinned list to install; not needed with our image.")
@click.option("--wait/--no-wait", default=True, help="Show what the job prints until it ends.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(address: str, requirements: Path | None, wait: bool, arguments: tuple[str, ...]) -> None:
    """Start a run as a job of a Ray cluster, with our packages as they are here.

    \b
    pac submit --address http://head:8265 run rl --folder s3://bucket/cheetah --ensemble /data/e.safetensors

    The run joins the cluster it is submitted to (--address auto). Paths are those of the cluster.
    """
    if arguments[0] not in ("run", "tune"):
        raise InvalidInput(f"submit takes the arguments of `pac run` or `pac tune`, got {arguments[0]!r}")
    told = any(word.partition("=")[0] == "--address" for word in arguments)
    command = [*arguments] if told else [*arguments, "--address", "auto"]
    job = start_job(command, address=address, requirements=requirements)
    say("submitted", f"job {job}; stop it with: ray job stop {job} --address {address}")
    if wait:
        status = follow(job, address=address, show=lambda text: click.echo(text, nl=False))
        say("job", f"{job} {status.lower()}")
        sys.exit(0 if status == "SUCCEEDED" else 1)
