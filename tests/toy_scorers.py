"""Scorers that misbehave in one way each, for the tests of the engine; workers import them by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MANY = 8
"""Times after which a scorer no longer fails, for engines that would try for ever."""
WAIT = 3600.0
"""Seconds after which a scorer that waits for something gives up."""


class Draw:
    """A score per unit, drawn from its id alone."""

    def __init__(self, shift: float = 0.0, *, device: str) -> None:
        self.shift = shift

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        ids = np.asarray(shard.ids)
        drawn = [np.random.default_rng(unit).normal() + self.shift for unit in ids.tolist()]
        return {"ids": ids, "scores": np.array(drawn)}


class Square:
    """A second stage."""

    def __init__(self, *, device: str) -> None:
        self.device = device

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        return {"ids": given["ids"], "scores": given["scores"] ** 2}


class Marked(Draw):
    """Notes each process that was made, and each shard that was begun."""

    def __init__(self, notes: str, *, device: str) -> None:
        super().__init__(device=device)
        self.notes = Path(notes)
        (self.notes / f"worker-{os.getpid()}").touch()

    def begun(self, shard: Any) -> int:
        """How often the shard had been begun before."""
        before = len(list(self.notes.glob(f"begun-{shard.number}-*")))
        (self.notes / f"begun-{shard.number}-{before}").touch()
        return before

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        self.begun(shard)
        time.sleep(0.02)  # so that several workers have a share
        return super().__call__(shard, given)


class Episodes(Draw):
    """Episodes of which those with an id below the limit in their hundred are errors."""

    def __init__(self, limit: int, *, device: str) -> None:
        self.limit = limit

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        ids = np.asarray(shard.ids)
        return {"ids": ids, "errors": ids % 100 < self.limit}


class NeverReady(Draw):
    """Hangs while it is made."""

    def __init__(self, *, device: str) -> None:
        super().__init__(device=device)
        time.sleep(WAIT)


class DiesOnce(Marked):
    """Its process is killed in the middle of shard 3, the first time."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if shard.number == 3 and not self.begun(shard):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(shard, given)


class DiesAlways(Marked):
    """Its process is killed whenever it meets shard 3; at most `MANY` times."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if shard.number == 3 and self.begun(shard) < MANY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(shard, given)


class RunsOutOfMemoryOnce(Marked):
    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if shard.number == 3 and not self.begun(shard):
            raise MemoryError("no room for this array")
        return super().__call__(shard, given)


class HangsOnce(Marked):
    """Shard 3 takes for ever, the first time."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if shard.number == 3 and not self.begun(shard):
            time.sleep(WAIT)
            raise TimeoutError("nobody else took the shard")
        return super().__call__(shard, given)


class Poisoned(Marked):
    """Unit 35 is a bad file, until it is mended, or has been tried far too often."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if 35 in shard.ids and not (self.notes / "mended").exists() and self.begun(shard) < MANY:
            raise ValueError("image 35.jpg is cut off")
        return super().__call__(shard, given)


class PoisonedAtOnce(Marked):
    """The very first shard is a bad file."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if not shard.number:
            raise ValueError("image 0.jpg is cut off")
        return super().__call__(shard, given)


class NotANumber(Draw):
    """Unit 35 has no score."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        found = super().__call__(shard, given)
        found["scores"][found["ids"] == 35] = np.nan
        return found


def node() -> str:
    """The name of the node that this process is on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


class Holds(Marked):
    """Shard 3 takes for ever, the first time; says on which node."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if shard.number == 3 and not self.begun(shard):
            (self.notes / f"held-{node()}").touch()
            time.sleep(WAIT)
        return super().__call__(shard, given)


class Bulky(Marked):
    """Adds so much to each unit that it stays on the node that made it; says on which one that is."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        found = super().__call__(shard, given) | {"bulk": np.zeros((len(shard), 100_000))}
        (self.notes / f"made-{node()}-{shard.number}").touch()
        return found


class SquareWhenTold(Marked):
    """A second stage that does nothing before there is a file `go`."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        wait_for(lambda: (self.notes / "go").exists())
        return {"ids": given["ids"], "scores": given["scores"] ** 2}


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds."""
    end = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(0.01)


class SquareDiesOnce(Marked):
    """A second stage that is killed in the middle of shard 3, the first time."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        if shard.number == 3 and not self.begun(shard):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"ids": given["ids"], "scores": given["scores"] ** 2}


class HardOnesFail(Marked):
    """A shard with a large score runs out of memory, the first time: failures are no random sample."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        found = super().__call__(shard, given)
        if found["scores"].max() > 1.5 and len(list(self.notes.glob(f"begun-{shard.number}-*"))) == 1:
            raise MemoryError("this one was hard")
        return found


class CannotStart:
    def __init__(self, *, device: str) -> None:
        raise FileNotFoundError("weights.bin is not there")


class Forgets(Draw):
    """Loses a unit of each shard."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        return {name: array[:-1] for name, array in super().__call__(shard, given).items()}


class Mixes(Draw):
    """Has the units of each shard in another order."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        return {name: array[::-1] for name, array in super().__call__(shard, given).items()}


class Tells:
    """What a worker was given: threads, device, GPUs."""

    def __init__(self, *, device: str) -> None:
        import torch  # noqa: F401 - so that its threads are set

        self.device = device

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        import torch
        from threadpoolctl import threadpool_info

        blas = [pool["num_threads"] for pool in threadpool_info()] or [1]
        gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        n = len(shard)
        return {
            "ids": np.asarray(shard.ids),
            "torch": np.full(n, torch.get_num_threads()),
            "blas": np.full(n, max(blas)),
            "cuda": np.full(n, int(self.device == "cuda")),
            "gpus": np.full(n, len(gpus)),
            "process": np.full(n, os.getpid()),
        }


class TellsTogether(Tells):
    """Goes on when so many workers are at work at the same time, and notes where each of them is."""

    def __init__(self, notes: str, workers: int, *, device: str) -> None:
        super().__init__(device=device)
        self.notes, self.workers = Path(notes), workers

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        where = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        (self.notes / f"worker {os.getpid()} {self.device} {where}").touch()
        wait_for(lambda: len(list(self.notes.glob("worker *"))) >= self.workers)
        return super().__call__(shard, given)
