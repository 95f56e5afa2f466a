"""The pages of docs/ that train a model, start Ray, or need packages of the extra `doors`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from doc_pages import DOCS, run_fresh

SLOW = ["tutorials/tubes", "tutorials/planner", "tutorials/cluster", "tutorials/levels"]
MORE = [
    "how-to/your-robot",
    "how-to/episode-logs",
    "how-to/losses",
    "how-to/groups",
    "how-to/gymnasium",
    "how-to/mbrl-lib",
    "how-to/torchrl",
    "how-to/rl-libraries",
    "how-to/models",
    "how-to/web-service",
    "how-to/kubernetes",
    "gallery",
]


@pytest.mark.parametrize("name", SLOW + MORE)
def test_a_page_runs(name: str, tmp_path: Path) -> None:
    run_fresh(DOCS / f"{name}.md", tmp_path)


def test_the_page_on_s3_runs_against_a_server_of_it(tmp_path: Path) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
        url = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys).create_bucket(Bucket="bucket")
        known = {name.upper(): value for name, value in keys.items()}
        run_fresh(DOCS / "how-to" / "s3.md", tmp_path, AWS_ENDPOINT_URL=url, **known)
    finally:
        server.stop()


def test_no_page_is_forgotten() -> None:
    from test_docs import LESSONS, QUICK

    known = {DOCS / f"{name}.md" for name in [*QUICK, *SLOW, *MORE, "how-to/s3"]}
    assert set(LESSONS) <= known
