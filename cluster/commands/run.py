"""`pac run TASK`: the tasks that ship, and those of other packages."""

from __future__ import annotations

import click

from pac_core.cli import PluginGroup


@click.group("run", cls=PluginGroup, kind="tasks")
def run() -> None:
    """Score units in parallel on Ray, and certify.

    \b
    pac run rl --folder cheetah --epsilon 0.01 --delta 1e-5
    pac run rl --folder s3://bucket/cheetah --address auto --workers 1..32
    pac run imagenet --folder val --images imagenet/val --model efficientnet-lite0 \\
        --tune 10000 --calibrate 20000 --epsilon 0.01 --delta 1e-5
    pac run otb --folder otb --tracks tracks.npz --calibrate 50 --epsilon 0.2 --delta 0.05
    pac run otb --folder otb --sequences OTB --tracker tracker.safetensors --calibrate 50 ...

    Finished shards are kept: the same command goes on where it was stopped. Without --epsilon and
    --delta only forecasts are computed, for pac tune.
    """
