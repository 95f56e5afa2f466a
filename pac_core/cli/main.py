"""The program `pac`, with `pac min-n`: how many calibration units a level needs."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Any

import click

from pac_core.bounds import PACLevel, max_errors, min_samples
from pac_core.cli.episodes import certify_episodes
from pac_core.cli.evaluate import evaluate_command, watch_command
from pac_core.cli.fit import fit
from pac_core.cli.options import PluginGroup, level_options
from pac_core.cli.report import report_command
from pac_core.cli.sets import sets_command
from pac_core.cli.verify import ledger_command, verify_command
from pac_core.errors import PACError

EPILOG = """\
Exit codes: 0 success, or yes; 1 the answer is no (refuted, does not follow);
2 the input was refused; 3 an internal error; 141 the output pipe was closed."""
PIPE_CLOSED = 141
"""As of any program whose pipe is closed; 0 would say that a certificate holds."""


class Refused(click.ClickException):
    """A refusal: one sentence without a traceback."""

    exit_code = 2


class Program(PluginGroup):
    """The program: what goes wrong in a command becomes one sentence and an exit code."""

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
    pac certify-episodes runs.csv --epsilon 0.05 --delta 0.01   a controller, from its log
    pac verify descent.json --ledger pac-ledger     check the certificate of a controller
    pac watch certificate.json new-scores.csv       at run time: is it still the same world?
    pac run rl --folder cheetah --epsilon 0.01 --delta 1e-5     on Ray, from a simulator
    pac report cheetah                              one page to show and to send
    """


MAKE = (fit, evaluate_command, sets_command, certify_episodes, report_command)
for command in (*MAKE, verify_command, ledger_command, watch_command):
    main.add_command(command)


@main.command("min-n")
@level_options(multiple=False)
@click.option("--errors", default=0, show_default=True, help="Errors to allow among the units.")
@click.option("--n", type=int, help="Instead, print how many errors this many units allow.")
def min_n(levels: list[PACLevel], errors: int, n: int | None) -> None:
    """Print how many calibration units a level needs.

    \b
    pac min-n --epsilon 0.01 --delta 1e-5
    pac min-n --epsilon 0.01 --delta 1e-5 --n 20000
    """
    (level,) = levels
    if n is None:
        click.echo(
            f"{min_samples(level, errors):,} calibration units prove epsilon={level.epsilon:g}, "
            f"delta={level.delta:g} if at most {errors:,} of them may lie outside their set"
        )
    else:
        click.echo(f"{n:,} calibration units prove it with up to {max_errors(n, level):,} outside their set")
