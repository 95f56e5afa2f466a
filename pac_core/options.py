"""Options that several commands of `pac` share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from pac_core.bounds import PACLevel
from pac_core.errors import InvalidInput
from pac_core.files import real_path
from pac_core.ledger import LedgerPath, read_family
from pac_core.texts import at_least
from pac_core.tubes import SHAPES

Function = TypeVar("Function", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)
LEDGER = "pac-ledger"
"""What a ledger is called, unless the user gives it another name."""


class Level(click.ParamType[PACLevel]):
    """`0.02,1e-5`."""

    name = "EPSILON,DELTA"

    def convert(self, value: Any, param: Any, ctx: Any) -> PACLevel:
        if isinstance(value, PACLevel):
            return value
        try:
            epsilon, delta = map(float, str(value).split(","))
        except ValueError:
            self.fail(f"must be epsilon and delta with a comma between them, as 0.02,1e-5, got {value!r}")
        return PACLevel(epsilon, delta)


class LedgerName(click.ParamType[LedgerPath]):
    """A folder, the file of an earlier version, or a URL."""

    name = "PATH|URL"

    def convert(self, value: Any, param: Any, ctx: Any) -> LedgerPath:
        return str(value) if "://" in str(value) else Path(value)


def level_options(*, multiple: bool, required: bool = True) -> Callable[[Function], Function]:
    """--epsilon and --delta, or --level, gathered in the argument `levels`: the strictest epsilon first.

    multiple: several are allowed
    required: one is needed
    """

    def add(function: Function) -> Function:
        @wraps(function)
        def gathered(*, epsilon: Any, delta: Any, level: Any, **given: Any) -> Any:
            levels = _levels(epsilon, delta, level)
            if required and not levels:
                raise InvalidInput("--epsilon and --delta must each be given, or --level, got neither")
            if not multiple and len(levels) > 1:
                raise InvalidInput(f"one level must be given, got {len(levels)}")
            return function(levels=levels, **given)

        many = " Give it again for several certificates from one look." if multiple else ""
        crossed = ", each with each --delta" if multiple else ""
        options: tuple[tuple[str, Any, str], ...] = (
            ("--level", Level(), "Both in one, as 0.02,1e-5, instead." + many),
            ("--delta", float, "Probability, over the draw of the units, that the promise fails."),
            ("--epsilon", float, f"Promised share of new units whose set misses the truth{crossed}."),
        )
        for name, kind, text in options:
            gathered = click.option(name, type=kind, multiple=True, help=text)(gathered)
        return gathered  # type: ignore[return-value]

    return add


def _levels(epsilons: Any, deltas: Any, pairs: Any) -> list[PACLevel]:
    """Every epsilon with every delta, or the pairs; refused if both are given, or half of one."""
    if pairs and (epsilons or deltas):
        raise InvalidInput("levels must be given by --level, or by --epsilon and --delta, got both")
    if bool(epsilons) != bool(deltas):
        raise InvalidInput("--epsilon and --delta go together, got only one of them")
    crossed = [PACLevel(epsilon, delta) for epsilon in epsilons for delta in deltas]
    return sorted({*crossed, *pairs}, key=lambda level: (level.epsilon, level.delta))


def ids_option(function: Function) -> Function:
    """--ids: which array of the file names the units."""
    return click.option("--ids", help="The array that names the units.  [default: ids, if there]")(function)


def shape_options(function: Function) -> Function:
    """--shape, and --feature for the shape `features`: the tube of trajectories."""
    shapes = ", ".join(SHAPES)
    feature = "For --shape features: NAME=DIMENSION, such as speed=0."
    function = click.option("--feature", "features", multiple=True, help=feature)(function)
    return click.option("--shape", help=f"Tube shape: {shapes}, or a plugin's.  [default: box]")(function)


def broken_option(default: str) -> Callable[[Function], Function]:
    """--broken: what becomes of an image that cannot be decoded."""
    text = "A broken image: refuse it with its path, or count it as a miss, which has an empty set."
    return click.option(
        "--broken", type=click.Choice(["error", "miss"]), default=default, show_default=True, help=text
    )


PREPROCESSING = {
    "preset": "How images go into an ONNX file or a torch module: imagenet, efficientnet-lite, inception, "
    "clip or caffe; what follows changes parts of it.",
    "size": "Width and height of the input.  [default: as the model says, if it does]",
    "crop": "Share of the short side kept as a centre square, as 0.875; or whole.",
    "mean": "Subtracted: one number, or three in the order of --colours, as 0.485,0.456,0.406.",
    "deviation": "Divided by, likewise.",
    "range": "1 or 255: a full channel, before mean and deviation.",
    "colours": "RGB or BGR.",
    "layout": "NCHW or NHWC.  [default: as the model says, if it does]",
    "resampling": "nearest, bilinear, bicubic or lanczos.",
}


def preprocessing_options(function: Function) -> Function:
    """--preset, --mean and so on, gathered in the argument `preprocessing`: those that were given."""

    @wraps(function)
    def gathered(**given: Any) -> Any:
        stated = {name: given.pop(name) for name in PREPROCESSING}
        chosen = {name: text for name, text in stated.items() if text is not None}
        return function(preprocessing=chosen, **given)

    for name, text in reversed(PREPROCESSING.items()):
        gathered = click.option(f"--{name}", help=text)(gathered)
    return gathered  # type: ignore[return-value]


def batch_option(function: Function) -> Function:
    """--batch: how many images are computed together."""
    text = "Images computed together; more on a GPU.  [default: 1, or what the model is fixed to]"
    return click.option("--batch", type=click.IntRange(1), help=text)(function)


def refuse_existing(force: bool, *paths: Path) -> None:
    """Refuse to replace files, unless asked to."""
    for path in paths:
        if path.exists() and not force:
            raise InvalidInput(
                f"--out must be new, but {path} exists: choose another, or --force to replace it"
            )


def logits_option(function: Function) -> Function:
    """--logits: which array of the file holds the logits."""
    return click.option("--logits", help="The array of DATA that holds the logits.  [default: logits]")(
        function
    )


def labels_option(function: Function) -> Function:
    """--logits and --labels: which array of the file holds them; labels may have a file of their own."""
    text = (
        "The array of DATA that holds the labels; or a file of them, FILE or FILE:ARRAY.  [default: labels]"
    )
    return logits_option(click.option("--labels", help=text)(function))


def refuse_unwritable(option: str, path: LedgerPath) -> None:
    """Refuse before any work if a result could not be written; of a URL only its store knows."""
    if "://" in str(path):
        return
    real = real_path(path)
    there = next(folder for folder in (real, *real.parents) if folder.is_dir())
    if not os.access(there, os.W_OK):
        raise InvalidInput(
            f"{option} must lie where files can be written, which {there} is not; choose another"
        )


def ledger_beside(data: Path, given: LedgerPath | None = None) -> LedgerPath:
    """The ledger `given`, or the one in the folder of the data; refused if it could not be written.

    Beside the data every look at it is seen, wherever the results go.
    """
    if given is not None:
        refuse_unwritable("--ledger", given)
        return given
    book = real_path(data).parent / LEDGER
    if not os.access(book.parent, os.W_OK):
        raise InvalidInput(
            f"the ledger must lie beside the data, but {book.parent} cannot be written; give --ledger, the "
            "same one for every look at this data"
        )
    return book


def say_cost(count: int, cost: float, ledger: LedgerPath) -> None:
    """What the certificates of a look cost together, and what else their ledger holds."""
    many = "it fails" if count == 1 else "any of them fails"
    say("ledger", f"{count} asked for; {many} with probability below {at_least(cost, 4)} ({ledger})")
    say("ledger", str(read_family(ledger)))


def say(what: str, text: str) -> None:
    """A line of progress: what is being done, and with what."""
    click.echo(f"{what:10}{text}")
