"""TorchRL's planners under guard, on the line where the best safe plan is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.modules import CEMPlanner, MPPIPlanner
from toy_line import WALL, WIDTH, Tubes

from pac_core import InvalidInput
from pac_rl import Dynamics, Guard, GuardedPlanner, NoSafePlan, plan_env

HORIZON = 3


def step_by_step(starts: np.ndarray, plans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = starts[:, None] + plans.cumsum(axis=1)
    return mean, np.full_like(mean, 0.01)


def fitted(fallback: Any = "hold", tubes: Any = None) -> Any:
    base = SimpleNamespace(system=SimpleNamespace(low=np.array([-1.0]), high=np.array([1.0])))
    guard = Guard(WALL, tubes or Tubes(HORIZON), fallback)
    return SimpleNamespace(guard=guard, model=Dynamics(step_by_step), base=base)


def position(states: Any, actions: Any) -> Any:
    return states[..., 0]


def advantage(given: Any) -> Any:
    return given.set("advantage", given["next", "reward"])


def cem(guard: Any) -> CEMPlanner:
    return CEMPlanner(plan_env(guard, reward=position), 1, optim_steps=4, num_candidates=80, top_k=8)


def mppi(guard: Any) -> MPPIPlanner:
    return MPPIPlanner(plan_env(guard, reward=position), advantage, 5.0, 1, 4, 80, 8)


MAKERS = [cem, mppi]


class Line(EnvBase):
    """A robot on a line as an environment of TorchRL."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, given: Any, **_: Any) -> Any:
        return TensorDict({"observation": torch.zeros(1)}, [])

    def _step(self, given: Any) -> Any:
        reached = given["observation"] + given["action"]
        return TensorDict(
            {"observation": reached, "reward": reached, "done": torch.zeros(1, dtype=torch.bool)}, []
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("make", MAKERS)
def test_torchrls_planners_keep_the_wall_and_come_near_it(make: Any) -> None:
    torch.manual_seed(0)
    actor = GuardedPlanner(make(fitted()))
    path = Line().rollout(8, actor)["next", "observation"]
    assert 0.5 < float(path.max()) <= 1.0 - WIDTH + 1e-6
    assert actor.decisions == 8


@pytest.mark.parametrize("make", MAKERS)
def test_unguarded_the_same_planner_goes_through_the_wall(make: Any) -> None:
    """A tube far from the wall guards nothing: else the test above would show nothing."""

    class Elsewhere(Tubes):
        def tube(self, forecast: Any) -> Any:
            return super().tube(type(forecast)(forecast.mean - 100, forecast.var))

    torch.manual_seed(0)
    path = Line().rollout(8, GuardedPlanner(make(fitted(tubes=Elsewhere(HORIZON)))))
    assert float(path["next", "observation"].max()) > 3.0


@pytest.mark.parametrize("make", MAKERS)
def test_of_several_states_each_gets_its_own_plan_or_the_fallback(make: Any) -> None:
    torch.manual_seed(0)
    actor = GuardedPlanner(make(fitted(fallback=lambda state: np.array([-0.25]))))
    states = torch.tensor([[-5.0], [9.0], [np.nan], [0.85]])
    done = actor(TensorDict({"observation": states}, [4]))
    actions = done["action"]
    assert actions.shape == (4, 1)
    assert float(actions[0]) > 0.3
    assert actions[1:3, 0].tolist() == [-0.25, -0.25]
    assert float(actions[3]) <= 0.05 + 1e-6
    assert (actor.decisions, actor.fallbacks) == (4, 2)
    assert actor.reasons[1].startswith("wall: may reach")
    assert actor.reasons[2] == "the state is not a number"
    one = actor(TensorDict({"observation": states[0]}, []))["action"]
    assert one.shape == (1,)


@pytest.mark.parametrize("make", MAKERS)
def test_where_no_plan_is_safe_the_planner_finds_the_least_unsafe_and_no_nan(make: Any) -> None:
    """MPPI's weights of values below -1e30 would all be 0."""
    torch.manual_seed(0)
    planner = make(fitted())
    plan = planner(TensorDict({"observation": torch.tensor([[9.0]])}, [1]))["action"]
    assert plan.shape == (1, HORIZON)
    assert plan.isfinite().all()
    assert float(plan[0, 0]) < -0.5  # back towards the wall
    with pytest.raises(NoSafePlan, match="wall: may reach"):
        GuardedPlanner(make(fitted("stop")))(TensorDict({"observation": torch.tensor([9.0])}, []))


class Means:
    """A planner that evaluates two safe plans and an unsafe one, and returns another."""

    planning_horizon = 1

    def __init__(self, guard: Any, returned: list[float]) -> None:
        self.env, self.returned = plan_env(guard, reward=position), returned

    def __call__(self, given: Any) -> Any:
        seen = torch.tensor([[[0.5, 0.3, 0.0], [-1.0, 0.0, 0.0], [0.9, 0.9, 0.9]]])
        starts = given["observation"][:, None].expand(1, 3, 1)
        self.env.step(TensorDict({"observation": starts, "action": seen}, [1, 3]))
        return given.set("action", torch.tensor([self.returned]))


@pytest.mark.parametrize(
    ("returned", "action", "replaced"),
    [
        ([0.5, 0.5, 0.0], 0.5, 1),  # ends at 1.1 with the tube; of those seen, the one with 0.3 acts
        ([0.2, 0.2, 0.2], 0.2, 0),  # never seen, and safe
        ([np.nan, 0.0, 0.0], 0.5, 1),
    ],
)
def test_the_plan_that_is_carried_out_is_checked_itself(
    returned: list[float], action: float, replaced: int
) -> None:
    actor = GuardedPlanner(Means(fitted(), returned))
    done = actor(TensorDict({"observation": torch.zeros(1, 1)}, [1]))
    assert float(done["action"]) == pytest.approx(action)
    assert (actor.replaced, actor.fallbacks) == (replaced, 0)
    # From beyond the wall all three seen are unsafe, and forgotten is what was safe before.
    done = actor(TensorDict({"observation": torch.full((1, 1), 9.0)}, [1]))
    assert (float(done["action"]), actor.fallbacks) == (0.0, 1)


def test_refusals() -> None:
    guard = fitted()
    with pytest.raises(InvalidInput, match="planning_horizon must be 1, because an action is a plan, got 3"):
        GuardedPlanner(CEMPlanner(plan_env(guard, reward=position), 3, 2, 8, 2))
    with pytest.raises(InvalidInput, match="planner must be on an environment of plan_env, got SimpleNam"):
        GuardedPlanner(SimpleNamespace(env=SimpleNamespace(), planning_horizon=1))
    with pytest.raises(InvalidInput, match="returns must come from one of evaluate, reward"):
        plan_env(guard)
    guard.base = None
    with pytest.raises(InvalidInput, match="low, high and horizon must be given where the guard has none"):
        plan_env(guard, reward=position)
    assert plan_env(guard, reward=position, low=[-1.0], high=[1.0], horizon=4).action_spec.shape == (4,)
    with pytest.raises(InvalidInput, match="fallback must be"):
        GuardedPlanner(cem(fitted(None)))
