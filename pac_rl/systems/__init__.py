"""Systems: what happens. Plain functions, MuJoCo environments, other Gymnasium environments; limits by name.

A name is imported when it is first used: guards work where no simulator is installed.
"""

from typing import TYPE_CHECKING

from pac_core.plugins import lazy_door

if TYPE_CHECKING:
    from pac_rl.systems.functions import (
        AnySystem,
        Floats,
        GymSystem,
        Rngs,
        System,
        check_bools,
        check_system,
        require_module,
    )
    from pac_rl.systems.mujoco import (
        KNOWN,
        SPEED,
        Environment,
        MujocoSystem,
        Simulator,
        at_every_step,
        make_environment,
        no_flip,
        read_physics,
        velocity_limit,
    )

__all__ = [
    "KNOWN",
    "SPEED",
    "AnySystem",
    "Environment",
    "Floats",
    "GymSystem",
    "MujocoSystem",
    "Rngs",
    "Simulator",
    "System",
    "at_every_step",
    "check_bools",
    "check_system",
    "make_environment",
    "no_flip",
    "read_physics",
    "require_module",
    "velocity_limit",
]

__getattr__, __dir__ = lazy_door(__name__, __file__, extra="rl")
