"""The subcommands of `python scripts/halfcheetah`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from cluster.commands import engine_at
from halfcheetah import demo as story
from halfcheetah import guard_certificate as certifying
from halfcheetah.experiment import SMOKE, Design, Experiment
from halfcheetah.figures import FIGURES, draw_all
from halfcheetah.guard import SMALL, TASKS, Guarded, Sizes
from halfcheetah.guard_results import SETTINGS, Counts, compare_guards, compare_settings
from halfcheetah.pets import SMALL as SMALL_LOOP
from halfcheetah.pets import compare_in_loop
from halfcheetah.train_policy import Search, search_policy
from pac_core import PACError
from pac_rl.pets import Loop
from pac_rl.planning import returns_in_words

FILE = click.Path(path_type=Path)


class Commands(click.Group):
    """Says a mistake in one sentence."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PACError as error:
            sys.exit(f"Error: {error}")
        except KeyboardInterrupt:
            sys.exit("stopped; the same command goes on from here")


@click.group(cls=Commands)
def main() -> None:
    """The paper's half-cheetah experiments, and ours beside them.

    Each goes on where it was stopped; --smoke-test does the same in seconds, with tiny numbers.
    """


def engine_options(out: str = "halfcheetah_output", address: str = "local", guard: bool = False) -> Any:
    """Where an experiment runs, and where it is kept; without Ray in a smoke test.

    guard: of a limit and a seed, too
    """
    where = "Ray: local, auto, HOST:PORT; or none, in this process."
    kept = "Folder for everything; a second run goes on."
    options = [
        click.option("--smoke-test", is_flag=True, help="Tiny numbers, in seconds."),
        click.option("--address", default=address, show_default=True, help=where),
        click.option("--out", type=FILE, default=out, show_default=True, help=kept),
    ]
    if guard:
        options.append(click.option("--seed", default=0, show_default=True, help="Of everything random."))
        limits = click.Choice(TASKS)
        options.append(click.option("--task", type=limits, default="speed", show_default=True))
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


@contextmanager
def guarded(out: Path, address: str, smoke_test: bool, seed: int, task: str) -> Iterator[Guarded]:
    """A limit and its controllers, on an engine."""
    design, sizes = (SMOKE, SMALL) if smoke_test else (Design(), Sizes())
    with engine_at("none" if smoke_test else address) as engine:
        yield Guarded(Experiment(replace(design, seed=seed), out, engine), task, sizes)


def options_of(kind: Any) -> Any:
    """An option for each field of a dataclass that has a text; those that are not given are None."""

    def add(command: Any) -> Any:
        hints, usual = get_type_hints(kind, include_extras=True), kind()
        for name, hint in reversed([pair for pair in hints.items() if hasattr(pair[1], "__metadata__")]):
            of, default = get_args(hint.__origin__) or (hint.__origin__,), getattr(usual, name)
            text = hint.__metadata__[0] + (f"  [default: {default}]" if type(default) in (int, float) else "")
            type_ = FILE if of[0] is Path else of[0]
            command = click.option(f"--{name.replace('_', '-')}", type=type_, help=text)(command)
        return command

    return add


def changed(kind: Any, options: dict[str, Any]) -> Any:
    """A dataclass with the options that were given."""
    return replace(kind, **{name: value for name, value in options.items() if value is not None})


@main.command()
@click.argument("names", nargs=-1, type=click.Choice([*FIGURES, "all"]))
@engine_options()
@click.option("--n", type=int, help="Rollouts each to tune, calibrate and test.  [default: 5000]")
@options_of(Design)
@click.option("--device", default="cpu", show_default=True, help="What trains: cpu, cuda, ...")
def figures(names, out, address, smoke_test, device, n, **options) -> None:
    """The paper's figures and tables, and ours beside them; without NAMES, all but propagation.

    \b
    certificate  the default tube at one level, with its ledger
    ablation     figure 3 (a), sizes with C+D, A+D and A+C+D
    steps        figure 3 (b), sizes at each step
    levels       figure 3 (c) and (d), sizes against epsilon and delta
    tables       the appendix, the ablation at fifteen levels
    baselines    sets of the forecaster's own mass, which promise nothing
    shapes       the paper's tube and ours, closed loop and given plans
    coverage     thousands of calibrations in a world whose error is known
    propagation  one-step, Jacobian, particles; takes minutes

    Trains the ensemble and rolls out first, unless the folder has them. Results are in its folder `results`.
    """
    sizes = dict.fromkeys(("tune", "calibrate", "test"), n)
    design = changed(SMOKE if smoke_test else Design(), options | sizes)
    steps = 100 if smoke_test else 1000
    click.echo(f"policy    {returns_in_words(*design.open(), steps=steps)}")
    with engine_at("none" if smoke_test else address, device) as engine:
        experiment = Experiment(design, out, engine, device)
        for name in names or ("all",):
            (draw_all if name == "all" else FIGURES[name])(experiment)


@main.command()
@engine_options("demo_output", "none")
def demo(out: Path, address: str, smoke_test: bool) -> None:
    """From rollouts to a guarded robot, in about three minutes on two cores.

    Trains a small probabilistic ensemble on rollouts of the policy that comes with pac_rl, rolls out
    thousands of real trajectories in MuJoCo, tunes and calibrates tubes for the next 20 steps, certifies
    them, and measures them on rollouts never looked at before. Then it lets the robot run under a speed
    limit, without and with a guard that checks the tubes of what it might do next.
    """
    design, sizes, episodes = (SMOKE, SMALL, 2) if smoke_test else (story.DESIGN, story.SIZES, 32)
    with engine_at("none" if smoke_test else address) as engine:
        story.show(Experiment(design, out, engine), sizes, episodes)


@main.command()
@engine_options(guard=True)
@click.option("--episodes", default=Counts.episodes, show_default=True, help="Compared.")
def guard(smoke_test: bool, episodes: int, **where: Any) -> None:
    """Guards compared on the same episodes: none, the predicted mean, the worst member, the paper's, ours.

    Tubes are fitted on rollouts of candidates, and our scale is chosen on tune episodes, none of which is
    reported on. The ensemble, trained twice in about ten minutes on two cores, is kept.
    """
    counts = Counts(episodes=4, tune=2, plans=3) if smoke_test else Counts(episodes=episodes)
    with guarded(smoke_test=smoke_test, **where) as guards:
        compare_guards(guards, counts)


@main.command()
@engine_options(guard=True)
@click.option("--episodes", default=64, show_default=True, help="Of each setting and scale.")
def guard_settings(smoke_test: bool, episodes: int, **where: Any) -> None:
    """Which planner suits the guard: horizons, checked steps and choices, weighed on tune episodes.

    A row for each setting, with the ratio of our return to that of the mean constraint, which may run over
    the limit.
    """
    tiny = (((2, 2, "return"), (2, 1, "factor")), 2)
    with guarded(smoke_test=smoke_test, **where) as guards:
        compare_settings(guards, *(tiny if smoke_test else (SETTINGS, episodes)))


@main.command()
@engine_options(guard=True)
@click.option("--kind", type=click.Choice([*certifying.KINDS]), default="episode", show_default=True)
@click.option("--scale", "scales", type=float, multiple=True, help="Of the tubes; several.")
@options_of(certifying.Plan)
@click.option("--ledger", type=FILE, help="[default: guard-ledger.json beside --out]")
def guard_certificate(
    out: Path, address: str, smoke_test: bool, seed: int, task: str, ledger: Path | None, **options: Any
) -> None:
    """Prove that at most one episode in twenty of the guarded robot breaks its limit, on Ray.

    For the kind "episode" an error is a broken limit anywhere in 200 steps from rest, fallback included; for
    "tube", the plan chosen at a step that was drawn beforehand leaves its tube when it is carried out, and
    P(unsafe given accepted) is a claim of its own. All three are charged to one budget of the ledger, which
    further attempts would have to share: with confidence 0.99 no statement from it is false.
    """
    plan = changed(certifying.SMALL if smoke_test else certifying.Plan(), options)
    # Its budget is for these statements; episodes are known by their seeds, whatever folder they lie in.
    name = "guard-smoke-ledger.json" if smoke_test else "guard-ledger.json"
    with guarded(out, address, smoke_test, seed, task) as guards:
        done = certifying.certify_guard(guards, plan, ledger or out.resolve().parent / name)
    sys.exit(0 if done.certified is not None else 1)


@main.command()
@engine_options("pets_output", "local")
@click.option("--episodes", default=12, show_default=True, help="Compared.")
@click.option("--tune", default=4, show_default=True, help="Episodes to choose our scale on.")
@click.option("--rounds", default=3, show_default=True, help="Of the loop.")
def pets(out: Path, address: str, smoke_test: bool, episodes: int, tune: int, rounds: int) -> None:
    """PETS with the guard in its loop, and five guards compared inside its planner.

    Finished episodes are kept; stopped before, the loop begins anew with the same numbers.
    """
    tiny = (SMALL_LOOP, 1, 1)
    with engine_at("none" if smoke_test else address) as engine:
        compare_in_loop(
            out, engine, *(tiny if smoke_test else (Loop(rounds=rounds, warm=40), tune, episodes))
        )


@main.command()
@options_of(Search)
def train_policy(**options: Any) -> None:
    """Train the linear policy that comes with pac_rl.

    Expect a return above 3,000 per 1,000 steps after two minutes on two cores. The policy that comes with
    pac_rl went on from there, towards a steady gait that seldom falls (return 5,000 per 1,000 steps):

    \b
    train-policy --minutes 7 --episodes 1 --judged 1 --out first.npz
    train-policy --minutes 5 --start first.npz --tilt 0.7 --steps 400 --directions 40
        --best 15 --rate 0.01 --spread 0.02 --out second.npz
    train-policy --minutes 4 --start second.npz --speed 4 --tilt 0.7 --steps 250 --directions 40
        --best 15 --episodes 3 --rate 0.01 --spread 0.02 --out policy.npz
    """
    search_policy(changed(Search(), options))
