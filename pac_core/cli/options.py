"""Options that several commands of `pac` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from pac_core import plugins
from pac_core.arrays import round_up
from pac_core.bounds import PACLevel
from pac_core.certificates.ledger import LedgerPath, read_family
from pac_core.datasets import read_arrays
from pac_core.errors import InvalidInput, UnreadableFile
from pac_core.files import real_path
from pac_core.thresholds import Groups
from pac_core.tubes import SHAPES

Function = TypeVar("Function", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)
LEDGER = "pac-ledger"
"""What a ledger is called, unless the user gives it another name."""

ids_option = click.option("--ids", help="The array that names the units.  [default: ids, if present]")
logits_option = click.option("--logits", help="The array of DATA with the logits.  [default: logits]")
batch_option = click.option(
    "--batch",
    type=click.IntRange(1),
    help="Images per batch; more on a GPU.  [default: 1, or the model's fixed batch size]",
)


class PluginGroup(click.Group):
    """Commands of its own, and those of a kind that are registered: listed without being imported."""

    def __init__(self, *arguments: Any, kind: plugins.Kind = "commands", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kind = kind

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *plugins.names(self.kind)})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self.commands or name not in plugins.names(self.kind):
            return super().get_command(ctx, name)
        command: click.Command = plugins.load(self.kind, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(90) for name, command in self.commands.items()}
        with formatter.section(self.kind.capitalize()):
            formatter.write_dl(sorted((plugins.describe(self.kind) | own).items()))


def labels_option(function: Function) -> Function:
    """--logits and --labels: which arrays of the file hold them; labels may be in a file of their own."""
    text = "The array of DATA with the labels, or a file of them, FILE or FILE:ARRAY.  [default: labels]"
    return logits_option(click.option("--labels", help=text)(function))


group_option = click.option("--group", metavar="COLUMN", help="The array with the group of each unit.")


def read_groups(data: Path, group: str | None, domain: Any, merge_small: bool) -> Groups | None:
    """What --group of `pac fit` asks for: an array of the file, `label`, or `label:FILE`."""
    if group is None:
        if merge_small:
            raise InvalidInput("--merge-small is for --group COLUMN, got no --group")
        return None
    if group.partition(":")[0] != "label":
        arrays = read_arrays(data)
        if group not in arrays:
            raise InvalidInput(
                f"--group must be label or an array of {data}, {', '.join(arrays)}, got {group!r}"
            )
        return Groups(arrays[group], merge_small=merge_small, column=group)
    if domain is None or domain[0] != "labels":
        raise InvalidInput(f"--group label is for forecasts of labels, which {data} does not hold")
    lines = range(domain[1]) if group == "label" else read_lines(Path(group.partition(":")[2]))
    return Groups(labels=lines, merge_small=merge_small, column="label")


def read_lines(path: Path) -> list[str]:
    """The names in a text file, one per line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        return [line.strip() for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{path} cannot be read as lines of text: {error}") from None


def shape_options(function: Function) -> Function:
    """--shape, and --feature for the shape `features`: the tube of trajectories."""
    shapes = ", ".join(SHAPES)
    feature = "For --shape features: NAME=DIMENSION, such as speed=0."
    function = click.option("--feature", "features", multiple=True, help=feature)(function)
    return click.option("--shape", help=f"Tube shape: {shapes}, or a plugin's.  [default: box]")(function)


def broken_option(default: str) -> Callable[[Function], Function]:
    """--broken: what happens to an image that cannot be decoded."""
    text = "Refuse a broken image, naming its path, or count it as a miss, with an empty set."
    return click.option(
        "--broken", type=click.Choice(["error", "miss"]), default=default, show_default=True, help=text
    )


class Level(click.ParamType[PACLevel]):
    """`0.02,1e-5`."""

    name = "EPSILON,DELTA"

    def convert(self, value: Any, param: Any, ctx: Any) -> PACLevel:
        if isinstance(value, PACLevel):
            return value
        try:
            epsilon, delta = map(float, str(value).split(","))
        except ValueError:
            self.fail(f"must be epsilon and delta separated by a comma, as in 0.02,1e-5, got {value!r}")
        return PACLevel(epsilon, delta)


class LedgerName(click.ParamType[LedgerPath]):
    """A folder, the file of an earlier version, or a URL."""

    name = "PATH|URL"

    def convert(self, value: Any, param: Any, ctx: Any) -> LedgerPath:
        return str(value) if "://" in str(value) else Path(value)


def level_options(*, multiple: bool, required: bool = True) -> Callable[[Function], Function]:
    """--epsilon and --delta, or --level, collected in the argument `levels`: the strictest epsilon first.

    multiple: whether several are allowed; required: whether one is needed
    """

    def add(function: Function) -> Function:
        @wraps(function)
        def collect(*, epsilon: Any, delta: Any, level: Any, **given: Any) -> Any:
            levels = _levels(epsilon, delta, level)
            if required and not levels:
                raise InvalidInput("--epsilon and --delta must each be given, or --level, got neither")
            if not multiple and len(levels) > 1:
                raise InvalidInput(f"one level must be given, got {len(levels)}")
            return function(levels=levels, **given)

        many = " Repeat it for several certificates from one look." if multiple else ""
        crossed = "; several are combined with every --delta" if multiple else ""
        options: tuple[tuple[str, Any, str], ...] = (
            ("--level", Level(), "Epsilon and delta in one, as in 0.02,1e-5." + many),
            ("--delta", float, "Probability, over the draw of the units, that the promise fails."),
            ("--epsilon", float, f"Probability that the set of a new unit misses the truth{crossed}."),
        )
        for name, kind, text in options:
            collect = click.option(name, type=kind, multiple=True, help=text)(collect)
        return collect  # type: ignore[return-value]

    return add


def _levels(epsilons: Any, deltas: Any, pairs: Any) -> list[PACLevel]:
    if pairs and (epsilons or deltas):
        raise InvalidInput("levels must be given by --level, or by --epsilon and --delta, got both")
    if bool(epsilons) != bool(deltas):
        raise InvalidInput("--epsilon and --delta go together, got only one of them")
    crossed = [PACLevel(epsilon, delta) for epsilon in epsilons for delta in deltas]
    return sorted({*crossed, *pairs}, key=lambda level: (level.epsilon, level.delta))


PREPROCESSING = {
    "preset": "How images are fed to an ONNX file or a torch module: imagenet, efficientnet-lite, inception, "
    "clip or caffe; the options below change parts of it.",
    "size": "Width and height of the input.  [default: the model's, if it states them]",
    "crop": "Share of the short side kept as a centre square, as in 0.875; or whole.",
    "mean": "Subtracted: one number, or three in the order of --colours, as in 0.485,0.456,0.406.",
    "deviation": "Divided by, likewise.",
    "range": "1 or 255: the value of a full channel, before mean and deviation.",
    "colours": "RGB or BGR.",
    "layout": "NCHW or NHWC.  [default: the model's, if it states it]",
    "resampling": "nearest, bilinear, bicubic or lanczos.",
}


def preprocessing_options(function: Function) -> Function:
    """--preset, --mean and so on; those that were given are in the argument `preprocessing`."""

    @wraps(function)
    def collect(**given: Any) -> Any:
        stated = {name: given.pop(name) for name in PREPROCESSING}
        return function(preprocessing={name: v for name, v in stated.items() if v is not None}, **given)

    for name, text in reversed(PREPROCESSING.items()):
        collect = click.option(f"--{name}", help=text)(collect)
    return collect  # type: ignore[return-value]


def refuse_existing(force: bool, *paths: Path) -> None:
    """Refuse to replace files unless `force` is set."""
    for path in paths:
        if path.exists() and not force:
            raise InvalidInput(f"--out must be new, but {path} exists; choose another, or give --force")


def refuse_unwritable(option: str, path: LedgerPath) -> None:
    """Refuse before any work a place where the result could not be written; of a URL only its store knows."""
    if "://" in str(path):
        return
    real = real_path(path)
    parent = next(folder for folder in (real, *real.parents) if folder.is_dir())
    if not os.access(parent, os.W_OK):
        raise InvalidInput(f"{option} must lie in a writable folder, which {parent} is not; choose another")


def ledger_beside(data: Path, given: LedgerPath | None = None) -> LedgerPath:
    """The ledger `given`, or the one beside the data, where every look at them is recorded."""
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


def say_cost(count: int, cost: float, ledger: LedgerPath, refused: Iterable[PACLevel] = ()) -> None:
    """Print the joint failure probability of a look's certificates, what else their ledger holds, and which
    levels were refused."""
    many = f"{count} certificate{'s' * (count != 1)}"
    say("ledger", f"{many}; joint failure probability < {round_up(cost, 4)} ({ledger})")
    say("ledger", str(read_family(ledger)))
    for level in refused:
        failed = "more units failed than errors are allowed"
        say("refused", f"epsilon={level.epsilon:g}, delta={level.delta:g}: {failed}")


def say(what: str, text: str) -> None:
    """Print a line of progress: the step, and what it does."""
    click.echo(f"{what:10}{text}")
