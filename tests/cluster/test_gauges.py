"""The figures of a run at Ray's own metrics endpoint, where Prometheus and the dashboard take them from."""

from __future__ import annotations

import re
import time
import urllib.request

import pytest
import ray

from cluster.session import gauges
from pac_core.runs import State

pytestmark = pytest.mark.xdist_group("ray")  # one Ray at a time


@pytest.mark.usefixtures("no_engine")
def test_time_left_and_the_rest_reach_the_metrics_endpoint() -> None:
    often = {"metrics_report_interval_ms": 500}
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _system_config=often)
    show, found = gauges("a run"), dict[str, float]()
    state = State(units=1000, shards=10, done=400, pools=(1, 1), retries=1, since=time.monotonic() - 20)
    [node] = ray.nodes()
    deadline = time.monotonic() + 600
    try:
        show(state)
        while len(found) < 5 and time.monotonic() < deadline:
            found = read(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics")
            time.sleep(0.2)
    finally:
        ray.shutdown()
    rate = found.pop("pac_units_per_second")
    assert 0 < rate <= 20
    assert found.pop("pac_seconds_left") == pytest.approx(600 / rate)
    assert found == {"pac_units_done": 400.0, "pac_workers": 2.0, "pac_retries": 1.0}


def read(url: str) -> dict[str, float]:
    """Our gauges; none while nobody listens there yet."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    lines = re.findall(r'^ray_(pac_\w+)\{[^}]*run="a run"[^}]*\} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in lines}
