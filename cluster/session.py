"""Ray, from the first connection to the last: a local engine, a cluster at hand, or one far away."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pac_core import InvalidInput
from pac_core.runs import Job, RunFolder, State, watch

STORE = 128 * 1024**2
"""Bytes of the object store of a local engine for a run: a few shards on their way, the rest goes to disk."""
ADDRESSES = "local, auto, HOST:PORT or ray://HOST:PORT"
_PLACE = re.compile(r"(ray://)?(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}")


def set_environment() -> None:
    """Settings that Ray reads when it is imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # the engine reads the first error, and stops
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # Ray Tune's banners; we show progress ourselves
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C is ours to answer
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default
    tokens = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    known = any(name in os.environ for name in tokens) or (Path.home() / ".ray" / "auth_token").exists()
    if known and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as Ray itself does where it starts a cluster


@contextmanager
def connected(
    address: str, *, cpus: int | None = None, dashboard: bool = False, store: int | None = None
) -> Iterator[str]:
    """Ray at an address: `local` starts it on this machine, the others join what runs; yields it in words.

    cpus: of a local engine; by default all
    dashboard: of a local engine; it takes a second or two to start
    store: bytes of its object store; the driver's memory grows by as much
    """
    if address not in ("local", "auto") and not _PLACE.fullmatch(address):
        raise InvalidInput(f"--address must be {ADDRESSES}, got {address!r}")
    set_environment()
    import ray
    from ray.exceptions import RayError

    if address == "local":  # what can be imported here, can be imported by the workers
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": cpus, "include_dashboard": dashboard, "object_store_memory": store}
    # Ray has workers import from this folder first; `python -P` asks not to, and they shall not either.
    elsewhere = chdir("/") if sys.flags.safe_path else nullcontext()
    try:
        with elsewhere:
            context = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise InvalidInput(
            f"--address {address}: Ray cannot be reached or started there ({reason})"
        ) from None
    try:
        total = ray.cluster_resources()  # type: ignore[no-untyped-call]
        nodes = sum(bool(node["Alive"]) for node in ray.nodes())  # type: ignore[no-untyped-call]
        logs = getattr(context, "address_info", {}).get("session_dir", "/tmp/ray/session_latest") + "/logs"
        cpus, gpus = (total.get(kind, 0) for kind in ("CPU", "GPU"))
        words = f"{nodes} machine{'s' * (nodes != 1)}, {cpus:g} CPU, {gpus:g} GPU; logs in {logs}"
        page = getattr(context, "dashboard_url", "")
        yield words + (f"; dashboard at http://{page}" if page else "")
    finally:
        ray.shutdown()


def gauges(run: str) -> Callable[[State], None]:
    """Figures for Ray's dashboard and whatever scrapes its metrics; time left among them."""
    import ray
    from ray.util.metrics import Gauge

    made: dict[str, Any] = {}
    if ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call] # the figures are those of a process on the cluster
        return lambda state: None

    def show(state: State) -> None:
        rate = state.rate  # by the clock: read it once
        values = {"pac_units_done": state.done, "pac_units_per_second": rate}
        values |= {"pac_workers": state.workers, "pac_retries": state.retries}
        if rate:
            values["pac_seconds_left"] = (state.units - state.done) / rate
        for name, value in values.items():
            if name not in made:
                made[name] = Gauge(name, tag_keys=("run",))
            made[name].set(value, tags={"run": run})

    return show


def run_on_ray(
    job: Job, folder: RunFolder, *, progress: Callable[[State], Any] | None = None, **options: Any
) -> State:
    """Every shard of the job on Ray, written to the folder; options are those of `cluster.engine.run`."""
    from cluster.engine import run  # imports Ray, which must come after `set_environment`

    measure = gauges(str(folder))

    def both(state: State) -> None:
        measure(state)
        if progress is not None:
            progress(state)

    return run(job, folder, progress=both, **options)


@contextmanager
def connect(
    address: str = "local",
    *,
    workers: tuple[int, int] | None = None,
    gpus: float | None = None,
    say: Callable[[str], Any] | None = None,
    store: int = STORE,
    **options: Any,
) -> Iterator[Callable[..., State]]:
    """An engine on Ray that shows how far it is, for `engine=` of `fit_guard`, `certify` and tasks.

    workers, gpus: see `cluster.engine.run`
    say: called with what Ray is there, in words
    store, options: see `connected`

    >>> with connect("local") as engine:  # doctest: +SKIP
    ...     guard = pac_rl.fit_guard(..., engine=engine)
    """
    with connected(address, store=store, **options) as session:
        if say is not None:
            say(session)
        yield partial(watch, run_on_ray, workers=workers, gpus=gpus)
