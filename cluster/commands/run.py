"""`pac run TASK`: the tasks that ship, and those of other packages."""

from __future__ import annotations

from importlib import import_module

import click

from pac_core import plugins

TASKS = {
    "rl": ("cluster.commands.rl:run_rl", "Rollouts of a robot and an ensemble's forecasts of them."),
    "imagenet": ("cluster.commands.vision:run_imagenet", "Images, classified by a model."),
    "otb": ("cluster.commands.vision:run_otb", "Tracks of videos, stored or fresh."),
}
"""Where the command of each task is, and what it is for; it is imported when it is run."""


class Tasks(click.Group):
    """The tasks above, and others by the entry points ``pac_sets.tasks``: click commands too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*TASKS, *plugins.names("tasks")]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in TASKS:
            module, _, command = TASKS[name][0].partition(":")
            found: click.Command = getattr(import_module(module), command)
            return found
        return plugins.load("tasks", name) if name in plugins.names("tasks") else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        added = {name: f"Added by a plugin: pac run {name} --help." for name in plugins.names("tasks")}
        with formatter.section("Tasks"):
            formatter.write_dl([*((name, text) for name, (_, text) in TASKS.items()), *added.items()])


@click.group("run", cls=Tasks)
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
