"""Options that the commands of the engine share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cluster.session import ADDRESSES
from pac_core.cli import LedgerName, level_options

Function = TypeVar("Function", bound=Callable[..., Any])
WORKERS = "how many, or MIN..MAX where the cluster can grow"


class Workers(click.ParamType[tuple[int, int]]):
    """`4`, or `1..16`."""

    name = "N|MIN..MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        ends = str(value).split("..")
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            self.fail(f"must be {WORKERS}, got {value!r}")
        least, most = int(ends[0]), int(ends[-1])
        if not 1 <= least <= most:
            self.fail(f"must be at least 1, and MIN at most MAX, got {value!r}")
        return least, most


class Gpus(click.ParamType[float]):
    """`0`, `0.5`, `1`, `2`: Ray gives out parts of one GPU, or whole ones."""

    name = "N"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            count = float(value)
        except ValueError:
            count = -1.0
        if not 0 <= count < float("inf") or (count > 1 and count != int(count)):
            self.fail(f"must be a part of one, as 0.5, or a whole number, got {value!r}")
        return count


def options(*chosen: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options at once, in this order."""

    def add(function: Function) -> Function:
        for option in reversed(chosen):
            function = option(function)
        return function

    return add


ledger_option = click.option(
    "--ledger", type=LedgerName(), help="[default: pac-ledger beside the data; see the docs]"
)
address_option = click.option(
    "--address", default="local", show_default=True, help=f"Ray: {ADDRESSES}; none goes without Ray."
)
engine_options = options(
    click.option("--folder", required=True, help="Run folder: a path or a URL such as s3://bucket/run."),
    address_option,
    click.option("--workers", type=Workers(), help=f"Of each kind: {WORKERS}.  [default: all]"),
    click.option(
        "--cpus",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="CPUs, and threads, of a worker.",
    ),
    click.option("--gpus", type=Gpus(), help="GPUs of a model worker, as 0.5.  [default: 1 if any]"),
    click.option("--seed", default=0, show_default=True, help="Of the units and of the split."),
    level_options(multiple=True, required=False),
    ledger_option,
    click.option("--dashboard", is_flag=True, help="Start Ray's dashboard with a local engine."),
    click.option("--estimate", is_flag=True, help="Compute one shard, say what all take, stop."),
)
