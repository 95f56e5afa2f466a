"""The subcommands of `python scripts/halfcheetah`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from halfcheetah.experiment import SMOKE, Design, Experiment, checked, engine_at, with_changes
from halfcheetah.train_policy import HELP, Search, search_policy
from pac_core import PACError
from pac_rl.returns import returns_in_words

FIGURE_NAMES = (
    *("certificate", "ablation", "steps", "levels", "tables", "baselines", "shapes", "coverage"),
    *("propagation", "all"),
)


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

    Each goes on where it was stopped; `--smoke-test` does the same in seconds, with tiny numbers.
    """


def common(out: str, address: str) -> Callable[[Any], Any]:
    """The options of every experiment."""

    def add(command: Any) -> Any:
        for option in (
            click.option("--smoke-test", is_flag=True, help="Tiny numbers, in seconds."),
            click.option("--seed", default=0, show_default=True, help="Of everything random."),
            click.option(
                "--address", default=address, show_default=True, help="Ray: local, auto, HOST:PORT; or none."
            ),
            click.option("--out", type=click.Path(path_type=Path), default=out, show_default=True),
        ):
            command = option(command)
        return command

    return add


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(FIGURE_NAMES))
@common("halfcheetah_output", "local")
@click.option("--n", type=int, help="Rollouts each to tune, calibrate and test.  [default: 5,000]")
@click.option("--epsilon", type=float, help="Promised error.  [default: 0.01]")
@click.option("--delta", type=float, help="Probability that the promise fails.  [default: 1e-5]")
@click.option("--horizon", type=int, help="Steps of a rollout.  [default: 20]")
@click.option("--env", help="Gymnasium's id of the environment.  [default: HalfCheetah-v5]")
@click.option("--policy", help="An npz or a Stable-Baselines3 zip.  [default: the one that ships]")
@click.option("--policy-std", type=float, help="Noise on each action, for a policy file that has none.")
@click.option("--vecnormalize", help="Of such a zip: npz of mean, var, clip, epsilon; or none.")
@click.option("--policy-sees", type=click.Choice(["observation", "state"]))
@click.option("--device", default="cpu", show_default=True, help="What trains: cpu, cuda, ...")
def figures(
    names: tuple[str, ...],
    out: Path,
    address: str,
    smoke_test: bool,
    device: str,
    **changes: Any,
) -> None:
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
    from halfcheetah.figures import FIGURES, draw_all

    design = with_changes(SMOKE if smoke_test else Design(), **changes)
    steps = 100 if smoke_test else 1000
    click.echo(f"policy    {returns_in_words(*checked(design), steps=steps)}")
    with engine_at("none" if smoke_test else address, device) as engine:
        experiment = Experiment(design, out, engine, device)
        for name in names or ("all",):
            (draw_all if name == "all" else FIGURES[name])(experiment)


@main.command()
@common("demo_output", "none")
def demo(out: Path, address: str, smoke_test: bool, seed: int) -> None:
    """From rollouts to a guarded robot, in about three minutes on two cores.

    Trains a small probabilistic ensemble on rollouts of the policy that comes with pac_rl, rolls out
    thousands of real trajectories in MuJoCo, tunes and calibrates tubes for the next 20 steps, certifies
    them, and measures them on rollouts never looked at before. Then it lets the robot run under a speed
    limit, without and with a guard that checks the tubes of what it might do next.
    """
    from halfcheetah import demo as story
    from halfcheetah.guard import SMALL

    design, sizes, episodes = (SMOKE, SMALL, 2) if smoke_test else (story.DESIGN, story.SIZES, 32)
    design = with_changes(design, seed=seed)
    with engine_at("none" if smoke_test else address) as engine:
        story.show(Experiment(design, out, engine), sizes, episodes)


@main.command()
@common("halfcheetah_output", "local")
@click.option("--task", type=click.Choice(["speed", "flip"]), default="speed", show_default=True)
@click.option("--episodes", default=300, show_default=True, help="Compared.")
def guard(out: Path, address: str, smoke_test: bool, seed: int, task: str, episodes: int) -> None:
    """Guards compared on the same episodes: none, the predicted mean, the worst member, the paper's, ours.

    Tubes are fitted on rollouts of candidates, and our scale is chosen on tune episodes, none of which is
    reported on. The ensemble, trained twice in about ten minutes on two cores, is kept.
    """
    from halfcheetah.guard import SMALL, Guarded, Sizes
    from halfcheetah.guard_results import Counts, compare_guards

    design = with_changes(SMOKE if smoke_test else Design(), seed=seed)
    counts = Counts(episodes=4, tune=2, plans=3) if smoke_test else Counts(episodes=episodes)
    with engine_at("none" if smoke_test else address) as engine:
        sizes = SMALL if smoke_test else Sizes()
        compare_guards(Guarded(Experiment(design, out, engine), task, sizes), counts)


@main.command()
@common("halfcheetah_output", "local")
@click.option("--task", type=click.Choice(["speed", "flip"]), default="speed", show_default=True)
@click.option("--episodes", default=64, show_default=True, help="Of each setting and scale.")
def guard_settings(out: Path, address: str, smoke_test: bool, seed: int, task: str, episodes: int) -> None:
    """Which planner suits the guard: horizons, checked steps and choices, weighed on tune episodes.

    A row for each setting, with the ratio of our return to that of the mean constraint, which may run over
    the limit.
    """
    from halfcheetah.guard import SMALL, Sizes
    from halfcheetah.guard_results import SETTINGS, compare_settings

    design = with_changes(SMOKE if smoke_test else Design(), seed=seed)
    tiny = (SMALL, ((2, 2, "return"), (2, 1, "factor")), 2)
    sizes, settings, count = tiny if smoke_test else (Sizes(), SETTINGS, episodes)
    with engine_at("none" if smoke_test else address) as engine:
        compare_settings(Experiment(design, out, engine), task, sizes, settings, count)


@main.command()
@common("halfcheetah_output", "local")
@click.option("--task", type=click.Choice(["speed", "flip"]), default="speed", show_default=True)
@click.option("--kind", type=click.Choice(["episode", "tube"]), default="episode", show_default=True)
@click.option("--scale", "scales", type=float, multiple=True, help="Of the tubes; several.")
@click.option("--episodes", default=380, show_default=True, help="Of each scale.")
@click.option("--allowed", default=8, show_default=True, help="Errors with which a scale passes.")
@click.option("--epsilon", default=0.05, show_default=True, help="Promised error.")
@click.option("--delta", default=0.004, show_default=True, help="Probability that the promise fails.")
@click.option("--confidence", default=0.998, show_default=True, help="Of P(unsafe given accepted).")
@click.option("--budget", default=0.01, show_default=True, help="Of a ledger that is begun, for all in it.")
@click.option("--ledger", type=click.Path(path_type=Path), help="[default: guard-ledger.json beside --out]")
@click.option("--attempt", default=0, show_default=True, help="Another one has fresh episodes.")
def guard_certificate(
    out: Path, address: str, smoke_test: bool, seed: int, task: str, ledger: Path | None, **plan: Any
) -> None:
    """Prove that at most one episode in twenty of the guarded robot breaks its limit, on Ray.

    For the kind "episode" an error is a broken limit anywhere in 200 steps from rest, fallback included; for
    "tube", the plan chosen at a step that was drawn beforehand leaves its tube when it is carried out, and
    P(unsafe given accepted) is a claim of its own. All three are charged to one budget of the ledger, which
    further attempts would have to share: with confidence 0.99 no statement from it is false.
    """
    from halfcheetah.guard import SMALL, Guarded, Sizes
    from halfcheetah.guard_certificate import Plan, certify_guard

    asked, sizes = Plan(**plan), SMALL if smoke_test else Sizes()
    if smoke_test:
        tiny = {"epsilon": 0.4, "delta": 0.4, "episodes": 10, "allowed": 3, "confidence": 0.9, "budget": 0.9}
        asked = replace(asked, **tiny)
    # Its budget is for these statements; episodes are known by their seeds, whatever folder they lie in.
    name = "guard-smoke-ledger.json" if smoke_test else "guard-ledger.json"
    design = with_changes(SMOKE if smoke_test else Design(), seed=seed)
    with engine_at("none" if smoke_test else address) as engine:
        guards = Guarded(Experiment(design, out, engine), task, sizes)
        done = certify_guard(guards, asked, ledger or out.resolve().parent / name)
    sys.exit(0 if done.certified is not None else 1)


@main.command()
@common("pets_output", "local")
@click.option("--episodes", default=12, show_default=True, help="Compared.")
@click.option("--tune", default=4, show_default=True, help="Episodes to choose our scale on.")
@click.option("--rounds", default=3, show_default=True, help="Of the loop.")
def pets(out: Path, address: str, smoke_test: bool, seed: int, episodes: int, tune: int, rounds: int) -> None:
    """PETS with the guard in its loop, and five guards compared inside its planner.

    Finished episodes are kept; stopped before, the loop begins anew with the same numbers.
    """
    from halfcheetah.pets import SMALL, compare_in_loop
    from pac_rl.loops import Loop

    loop = replace(SMALL if smoke_test else Loop(rounds=rounds, warm=40), seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    with engine_at("none" if smoke_test else address) as engine:
        compare_in_loop(out, engine, loop, 1 if smoke_test else tune, 1 if smoke_test else episodes)


def policy_options(command: Any) -> Any:
    """An option for each field of a search."""
    for name, default in reversed(vars(Search()).items()):
        kind = click.Path(path_type=Path) if name in ("out", "start") else type(default)
        command = click.option(f"--{name}", type=kind, default=default, show_default=True, help=HELP[name])(
            command
        )
    return command


@main.command()
@policy_options
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
    search_policy(Search(**options))
