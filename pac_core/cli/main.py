"""The program `pac`: its own commands, and those that other packages register."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Any

import click

from pac_core import plugins
from pac_core.cli.evaluate import evaluate_command
from pac_core.cli.fit import fit
from pac_core.cli.ledger import ledger_command
from pac_core.cli.min_n import min_n, plot
from pac_core.cli.sets import sets_command
from pac_core.cli.verify import verify_command
from pac_core.errors import PACError

ON_RAY = {
    "logits": "Write the logits of a finished run to npz or parquet.",
    "run": "Score units in parallel on Ray, and certify.",
    "submit": "Submit a run as a job to a Ray cluster.",
    "tune": "Sweep epsilon, delta and the choice of score with Ray Tune.",
}
"""Commands of the package `cluster`, which is not imported to list them."""
EPILOG = """\
Exit codes: 0 success, or yes; 1 the answer is no (refuted, does not follow);
2 the input was refused; 3 an internal error; 141 the output pipe was closed."""
PIPE_CLOSED = 141
"""As of any program whose pipe is closed; 0 would say that a certificate holds."""


class Refused(click.ClickException):
    """A refusal: one sentence without a traceback."""

    exit_code = 2


class Program(click.Group):
    """The commands of this package, and those that others register as ``pac_sets.commands``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *plugins.names("commands")})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        own = super().get_command(ctx, name)
        if own is not None or name not in plugins.names("commands"):
            return own
        try:
            command: click.Command = plugins.load("commands", name)
        except PACError as error:
            raise Refused(str(error)) from None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing those of plugins."""
        own = {name: command.get_short_help_str(90) for name, command in self.commands.items()}
        others = plugins.names("commands")
        added = {name: ON_RAY.get(name, f"Added by a plugin: pac {name} --help.") for name in others}
        with formatter.section("Commands"):
            formatter.write_dl(sorted((added | own).items()))

    def invoke(self, ctx: click.Context) -> Any:
        if sys.stdout is None:  # before a unit is spent on an answer that nobody would see
            raise Refused("standard output is closed: redirect it to a file or to /dev/null")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # as standard error does
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
            return answer
        except PACError as error:
            raise Refused(str(error)) from None
        except BrokenPipeError:  # the reader stopped, as `| head` does, perhaps before the answer
            _discard_output()
            ctx.exit(PIPE_CLOSED)
        except OSError as error:
            named = error.filename or ("standard output" if _discard_output() else "a file")  # ours are named
            raise Refused(f"{named}: {error.strerror or error}") from None
        except Exception as error:
            if isinstance(error, click.ClickException | click.exceptions.Exit | click.Abort):
                raise
            traceback.print_exc()
            click.echo("This is a bug in the program, not an answer; please report it.", err=True)
            ctx.exit(3)


def _discard_output() -> bool:
    """Whether standard output is closed; if so, discard what it still holds."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


@click.group(cls=Program, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pac-sets", prog_name="pac")
def main() -> None:
    """Prediction sets with a proven guarantee: P(miss) <= epsilon, with confidence 1 - delta.

    \b
    pac min-n --epsilon 0.01 --delta 1e-5           how many calibration units are needed
    pac fit logits.npz --epsilon 0.05 --delta 1e-5 --tune 1000 --calibrate 2000
    pac evaluate certificate.json logits.npz        measure error and sizes on test units
    pac sets certificate.json new.npz               prediction sets for new units
    pac verify certificate.json scores.npz          check that the certificate follows
    pac verify descent.json --ledger pac-ledger      the same for a guarded controller
    pac run rl --folder cheetah --epsilon 0.01 --delta 1e-5     on Ray, from a simulator
    """


for command in (min_n, fit, evaluate_command, sets_command, verify_command, ledger_command, plot):
    main.add_command(command)

if __name__ == "__main__":
    main()
