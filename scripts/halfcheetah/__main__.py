"""The paper's half-cheetah experiments, and ours beside them.

Each goes on where it was stopped; --smoke-test does the same in seconds, with tiny numbers.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import click

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that workers find the modules as `halfcheetah`
from common import PATH, option, options, out_option, seed_option, smoke_option, start
from halfcheetah import guard_results as guarding
from halfcheetah.any_of import SMALL as FEW_PICKS
from halfcheetah.any_of import Counts, compare_guarded, compare_picks
from halfcheetah.demo import run_demo
from halfcheetah.experiment import SMOKE, Design, Experiment
from halfcheetah.figures import FIGURES, draw_all
from halfcheetah.guard import SMALL, TASKS, Guarded, Sizes
from halfcheetah.pets import SMALL as SMALL_LOOP
from halfcheetah.pets import Loop, run_loop
from halfcheetah.picture import draw_picture
from halfcheetah.train_policy import Search, search_policy
from halfcheetah.world import compare_worlds, log_episodes

from cluster.commands import engine_at
from pac_rl.policies import returns_in_words

main = click.Group(help=__doc__)


def engine_options(out="halfcheetah_output", address="local"):
    """Where an experiment runs, and where it is kept; without Ray in a smoke test."""
    where = option("address", address, "Ray: local, auto, HOST:PORT; or none, in this process.")
    return options(smoke_option, where, out_option(out))


task_option = option("task", "speed", "The limit.", type=click.Choice(TASKS))
guard_options = options(engine_options(), seed_option, task_option)


@contextmanager
def guarded(out, address, smoke_test, seed, task):
    """A limit and its controllers, on an engine."""
    design, sizes = (SMOKE, SMALL) if smoke_test else (Design(), Sizes())
    with engine_at("none" if smoke_test else address) as engine:
        yield Guarded(Experiment(replace(design, seed=seed), out, engine), task, sizes)
    print(f"\neverything is in {out / 'results'}")


def options_of(kind):
    """An option for each field of a dataclass that has a text; those that are not given are None."""
    made, usual = [], kind()
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if hasattr(hint, "__metadata__"):
            of, default = get_args(hint.__origin__) or (hint.__origin__,), getattr(usual, name)
            text = hint.__metadata__[0] + (f"  [default: {default}]" if type(default) in (int, float) else "")
            type_ = PATH if of[0] is Path else of[0]
            how = {"is_flag": True, "default": None} if type_ is bool else {"type": type_}
            made.append(click.option(f"--{name.replace('_', '-')}", help=text, **how))
    return options(*made)


def changed(kind, given):
    """A dataclass with the options that were given."""
    return replace(kind, **{name: value for name, value in given.items() if value is not None})


@main.command()
@click.argument("names", nargs=-1, type=click.Choice([*FIGURES, "all"]))
@engine_options()
@click.option("--n", type=int, help="Rollouts each to tune, calibrate and test.  [default: 5000]")
@options_of(Design)
@option("device", "cpu", "What trains: cpu, cuda, ...")
def figures(names, out, address, smoke_test, device, n, **given):
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
    propagation  one-step or particles

    Trains the ensemble and rolls out first, unless the folder has them. Results are in its folder `results`.
    """
    sizes = dict.fromkeys(("tune", "calibrate", "test"), n)
    design = changed(SMOKE if smoke_test else Design(), given | sizes)
    print(f"policy    {returns_in_words(*design.open(), steps=100 if smoke_test else 1000)}")
    with engine_at("none" if smoke_test else address, device) as engine:
        experiment = Experiment(design, out, engine, device)
        for name in names or ("all",):
            (draw_all if name == "all" else FIGURES[name])(experiment)
    print(f"\neverything is in {out / 'results'}")


@main.command()
@engine_options("demo_output")
def demo(out, address, smoke_test):
    """From rollouts to a guarded robot and a page about it, on Ray, in under five minutes on two cores.

    Trains a small probabilistic ensemble, rolls out thousands of half-cheetah trajectories with its forecasts
    on Ray workers, fits tubes for the next 20 steps and sweeps epsilon and delta with Ray Tune, measures them
    on rollouts never looked at before. Then it carries out plans to fit the tube of a guard, and lets the
    robot run under a speed limit, without and with that guard. Ctrl-C, and the same command goes on.
    """
    with engine_at("none" if smoke_test else address) as engine:
        run_demo(out, engine, smoke_test)


@main.command()
@out_option("demo_output")
@option("file", Path("docs/images/guard.svg"), "The drawing.", type=PATH)
def picture(out, file):
    """Draw README's picture from the episodes of the demo."""
    draw_picture(out, file)
    print(f"wrote {file}")


@main.command()
@guard_options
@option("episodes", 300, "Compared.")
def guard(smoke_test, episodes, **where):
    """Guards compared on the same episodes: none, the predicted mean, the worst member, the paper's, ours.

    Tubes are fitted on rollouts of candidates, and our scale is chosen on tune episodes, none of which is
    reported on. The ensemble, trained twice in about ten minutes on two cores, is kept.
    """
    counts = (4, 2, 3) if smoke_test else (episodes, 64, 200)  # compared, to tune, plans that are timed
    with guarded(smoke_test=smoke_test, **where) as guards:
        guarding.compare_guards(guards, *counts)


@main.command()
@guard_options
@option("episodes", 64, "Of each setting and scale.")
def guard_settings(smoke_test, episodes, **where):
    """Which planner suits the guard: horizons, checked steps and choices, weighed on tune episodes.

    A row for each setting, with the ratio of our return to that of the mean constraint, which may run over
    the limit.
    """
    tiny = (((2, 2, "return"), (2, 1, "factor")), 2)
    with guarded(smoke_test=smoke_test, **where) as guards:
        guarding.compare_settings(guards, *(tiny if smoke_test else (guarding.SETTINGS, episodes)))


@main.command()
@guard_options
@option("kind", "episode", "What is an error.", type=click.Choice([*guarding.KINDS]))
@click.option("--scale", "scales", type=float, multiple=True, help="Of the tubes; several.")
@options_of(guarding.Plan)
@click.option("--ledger", type=PATH, help="[default: guard-ledger.json beside --out]")
def guard_certificate(out, address, smoke_test, seed, task, ledger, **given):
    """Prove that at most one episode in twenty of the guarded robot breaks its limit, on Ray.

    For the kind "episode" an error is a broken limit anywhere in 200 steps from rest, fallback included; for
    "tube", the plan chosen at a step that was drawn beforehand leaves its tube when it is carried out, and
    P(unsafe given accepted) is a claim of its own; for "share", the loss is the share of steps in violation.
    All are charged to one budget of the ledger, which further attempts would have to share: with confidence
    0.99 no statement from it is false.
    """
    plan = changed(guarding.SMALL_PLAN if smoke_test else guarding.Plan(), given)
    # Its budget is for these statements; episodes are known by their seeds, whatever folder they lie in.
    name = "guard-smoke-ledger.json" if smoke_test else "guard-ledger.json"
    with guarded(out, address, smoke_test, seed, task) as guards:
        done = guarding.certify_guard(guards, plan, ledger or out.resolve().parent / name)
    sys.exit(0 if done.certified is not None else 1)


@main.command()
@engine_options()
@seed_option
@click.option("--model", type=PATH, help="Another ensemble, such as the guard's: around the policy alone.")
@click.option("--guarded", is_flag=True, help="From starts of guarded episodes; needs --model.")
def any_of(out, address, smoke_test, seed, model, guarded):
    """Best of 21 and of 400 plans: the tube of a drawn plan beside the tube of whichever is picked.

    All plans of each start are carried out. Finished shards are kept; the ensemble is trained first, unless
    the folder has it.
    """
    design, counts = (SMOKE, FEW_PICKS) if smoke_test else (Design(), Counts())
    with engine_at("none" if smoke_test else address) as engine:
        experiment = Experiment(replace(design, seed=seed), out, engine)
        (compare_guarded if guarded else compare_picks)(experiment, counts, model)
    print(f"\neverything is in {out / 'results'}")


@main.command()
@engine_options()
@seed_option
def same_world(out, address, smoke_test, seed):
    """How soon a monitor of scores notices another floor, body or motors."""
    few = {"tune": 60, "calibrate": 100, "lives": 2, "units": 40} if smoke_test else {}
    design = SMOKE if smoke_test else Design()
    with engine_at("none" if smoke_test else address) as engine:
        compare_worlds(Experiment(replace(design, seed=seed), out, engine), **few)


@main.command("log-episodes")
@seed_option
@option("episodes", 1000, "How many.")
@option("steps", 200, "Of each.")
@option("file", Path("runs.csv"), "The log.", type=PATH)
def log_episodes_command(seed, episodes, steps, file):
    """Write a log of the policy's episodes from rest, for pac certify-episodes."""
    log_episodes(Experiment(Design(seed=seed), file.parent, None), file, episodes, steps)


@main.command()
@engine_options("pets_output")
@option("rounds", 3, "Of the loop.")
def pets(out, address, smoke_test, rounds):
    """PETS with a guard that is fitted again after each training, and a certificate at the end.

    Finished units and episodes are kept; stopped before, the loop begins anew with the same numbers.
    """
    with engine_at("none" if smoke_test else address) as engine:
        run_loop(out, engine, SMALL_LOOP if smoke_test else Loop(rounds=rounds))


@main.command()
@options_of(Search)
def train_policy(**given):
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
    search_policy(changed(Search(), given))


if __name__ == "__main__":
    start(main)
