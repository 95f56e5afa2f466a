"""What a run is made with: the same digest in every process for the same content, and for nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_scorers as toys
from toy_runs import files, job

from cluster.engine import run
from cluster.workers import WorkerDiffers
from pac_core import InvalidInput
from pac_core.certificates import Record
from pac_core.runs import Job, RunFolder, Stage, Task, find_versions, run_here
from pac_core.runs import digests as sources
from pac_core.runs.digests import Digests, Sources, Undigested

ROOT = Path(__file__).parents[2]


def digest(value: Any) -> str:
    return Digests()(value)


@dataclass(frozen=True)
class Settings:
    width: int = 3
    names: tuple[str, ...] = ("a",)


class Remembers:
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    @cached_property
    def total(self) -> float:
        return float(self.weights.sum())


def scaled(scale: Any) -> Callable[[Any], Any]:
    return lambda value: scale * value


def local(scale: float) -> type:
    class Scaled(toys.Draw):
        def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
            return {"ids": np.asarray(shard.ids), "scores": scale * np.ones(len(shard))}

    return Scaled


def linear(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())


DIFFERENT: list[tuple[Any, Any]] = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ("1", b"1"),
    ([1, 2], (1, 2)),
    ([[1], 2], [[1, 2]]),
    ({"a": 1}, {"a": 2}),
    (np.zeros(4), np.zeros((2, 2))),
    (np.zeros(2, np.int64), np.zeros(2)),
    (np.arange(3.0), np.array([0.0, 1.0, 2.0 + 1e-15])),
    (np.array([1, "a"], object), np.array([1, "b"], object)),
    (np.zeros(1, [("a", "i1"), ("b", "i8")]), np.ones(1, [("a", "i1"), ("b", "i8")])),
    (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
    (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
    (linear(0).state_dict(), linear(1).state_dict()),
    (linear(0), linear(1)),
    (linear(0), linear(0).eval()),
    (torch.nn.ReLU(), torch.nn.SiLU()),
    (Settings(), Settings(4)),
    (Settings(), Settings(names=("b",))),
    (partial(scaled, 1.0), partial(scaled, 2.0)),
    (scaled(1.0), scaled(2.0)),
    (scaled(np.zeros(3)), scaled(np.ones(3))),
    (local(1.0), local(2.0)),
    (toys.Draw, toys.Forgets),
    (type("Scaled", (toys.Draw,), {"scale": 1.0}), type("Scaled", (toys.Draw,), {"scale": 2.0})),
    (np.random.default_rng(0), np.random.default_rng(1)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=lambda value: type(value).__name__)
def test_other_content_has_another_digest(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
    assert digest({"deep": [one]}) != digest({"deep": [other]})


def test_the_same_content_has_the_same_digest() -> None:
    weights = np.arange(6.0).reshape(2, 3)
    assert digest(weights) == digest(np.asfortranarray(weights)) == digest(np.repeat(weights, 2, 0)[::2])
    assert digest(linear(0)) == digest(linear(0))
    assert digest(scaled(2.0)) == digest(scaled(2.0))
    assert digest(local(2.0)) == digest(local(2.0))
    shared = [1.0]
    assert digest([shared, shared]) == digest([[1.0], [1.0]])
    untouched, used = Remembers(weights), Remembers(weights.copy())
    assert used.total == 15.0
    assert digest(untouched) == digest(used), "a value that is only remembered is no content"


def test_a_value_that_holds_itself_has_a_digest() -> None:
    def ring(last: int) -> list[Any]:
        made: list[Any] = [1, last]
        return [*made, made.append(made) or made]

    assert digest(ring(1)) == digest(ring(1)) != digest(ring(2))


class Session:
    """As an inference session of a library: nothing can be seen of its content."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Offers(Session):
    def __init__(self, digest: Any) -> None:
        self.digest = digest


def test_what_cannot_be_seen_offers_a_digest_or_is_refused(tmp_path: Path) -> None:
    assert digest([Offers("a")]) == digest([Offers(lambda: "a")]) != digest([Offers("b")])
    for value in (Session(), [threading.Lock()], Offers(3), Offers(None)):
        with pytest.raises(Undigested):
            digest(value)
    said = (
        r"the argument shift of Draw must be something whose content tells it from another, got a "
        r"\S*Session: give the object a `digest`"
    )
    with pytest.raises(InvalidInput, match=said):
        run_here(job(toys.Draw, {"models": [Session()]}), RunFolder(tmp_path))


def test_equal_weights_offered_beside_other_settings_are_not_equal() -> None:
    """A `digest` may be of a part only: it is asked for where the rest cannot be seen, not instead of it."""

    @dataclass(frozen=True)
    class Model:
        threshold: float
        digest: str = "of the weights"

    assert digest(Model(1.0)) != digest(Model(2.0))


MODULE = """
from helpers.scales import scale
class Score:
    def __init__(self, weights, *, device):
        self.weights = weights
    def __call__(self, shard, given):
        import numpy as np
        return {"ids": np.asarray(shard.ids), "scores": scale() * np.ones(len(shard)) * self.weights.sum()}
"""
SCALES = "import helpers.constants\ndef scale():\n    from helpers import late\n    return late.SCALE\n"
DRIVER = """
import sys
import numpy as np
{defined}
from pac_core.runs import Job, RunFolder, Stage, run_here
from pac_core import InvalidInput
weights = {weights}
job = Job.of("mine", range(4), [Stage(Score, (weights,), exempt={exempt})], size=2)
try:
    run_here(job, RunFolder(sys.argv[1]), limit=1)
except InvalidInput as error:
    print(error)
"""


def drive(
    folder: Path,
    *,
    defined: str = "from scores import Score",
    weights: str = "{'w': {3, 4}, 'x': np.ones(2)}['x']",
    exempt: str = "()",
    scales: str = SCALES,
    late: str = "SCALE = 1.0",
    seed: str = "0",
) -> str:
    """What a driver in a process of its own says, with this code and these arguments."""
    home = folder / "home"
    (home / "helpers").mkdir(parents=True, exist_ok=True)
    sources = {"scores": MODULE, "helpers/scales": scales, "helpers/late": late, "helpers/constants": ""}
    for name, text in sources.items():
        (home / f"{name}.py").write_text(text)
    (home / "driver.py").write_text(DRIVER.format(defined=defined, weights=weights, exempt=exempt))
    done = subprocess.run(
        [sys.executable, "driver.py", str(folder / "run")],
        cwd=home,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed, "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return done.stdout


def test_a_job_of_ones_own_is_not_continued_with_other_arguments_or_code(tmp_path: Path) -> None:
    assert drive(tmp_path) == ""
    assert drive(tmp_path, seed="1") == "", "another process, with another order of sets"
    assert "another version of Score's weights" in drive(tmp_path, weights="np.zeros(2)")
    assert "another version of code of helpers.late" in drive(tmp_path, late="SCALE = 2.0"), (
        "imported in a function"
    )
    said = drive(tmp_path, scales=SCALES + "# more\n")
    assert "belongs to another run: it has another version of code of helpers.scales" in said
    assert "exempt must name arguments of Score, got 'w'" in drive(tmp_path, exempt="('w',)")


def script(base: str = "2.0") -> str:
    """The scorer in the driver itself, with what it uses."""
    used = f"from helpers import scales\nBASE = {base}\ndef double(x):\n    return BASE * x\n"
    scorer = MODULE.replace("from helpers.scales import scale\n", "")
    return used + scorer.replace("scale()", "double(scales.scale())")


def test_code_that_a_script_has_itself_counts_by_what_the_scorer_uses(tmp_path: Path) -> None:
    """It travels by value: what else is in the script may change."""
    assert drive(tmp_path, defined=script()) == ""
    assert drive(tmp_path, defined=script() + "print_less = True\n", seed="1") == ""
    said = drive(tmp_path, defined=script("3.0"))
    assert "belongs to another run: it has another version of Score. " in said
    assert "another version of Score. " in drive(tmp_path, defined=script().replace("BASE * x", "BASE + x"))
    assert "another version of code of helpers.late" in drive(tmp_path, defined=script(), late="SCALE = 2.0")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_that_an_argument_names_counts_by_its_content(tmp_path: Path, kind: type) -> None:
    weights, found = tmp_path / "weights.bin", []
    for content in (b"first", b"second", b"first"):
        weights.write_bytes(content)
        found.append(job(toys.Draw, kind(weights)).describe())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_that_an_argument_names_counts_by_its_content(tmp_path: Path, kind: type) -> None:
    """By the names and contents of its files, wherever it lies; links count by what they lead to."""

    def described(name: str) -> Any:
        return job(toys.Draw, kind(tmp_path / name)).describe()

    for name in ("model", "moved"):
        (tmp_path / name / "parts").mkdir(parents=True)
        (tmp_path / name / "parts" / "weights.bin").write_bytes(b"first")
        (tmp_path / name / "back").symlink_to(tmp_path / name)
        (tmp_path / name / "gone").symlink_to("nowhere")
    first = described("model")
    assert described("moved") == first
    (tmp_path / "model" / "parts" / "weights.bin").write_bytes(b"other")
    assert described("model") != first
    (tmp_path / "moved" / "parts" / "weights.bin").rename(tmp_path / "moved" / "weights.bin")
    assert described("moved") != first


def test_an_exempt_argument_may_change(tmp_path: Path) -> None:
    def logged(log: str) -> Job:
        return Job.of("toy", range(20), [Stage(toys.Marked, (log,), exempt=("notes",))], size=10)

    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "log.txt").write_text(place)
        state = run_here(logged(str(tmp_path / place)), RunFolder(tmp_path / "run"), limit=1)
    assert state.finished == 2


def test_a_model_that_is_trained_on_between_two_runs_is_another(tmp_path: Path) -> None:
    weights = np.ones(())
    asked = job(toys.Draw, weights)
    run_here(asked, RunFolder(tmp_path), limit=1)
    weights += 1.0
    with pytest.raises(InvalidInput, match="another version of Draw's shift"):
        run_here(asked, RunFolder(tmp_path))


def test_a_task_counts_its_arguments_too(tmp_path: Path) -> None:
    def task(shift: float) -> Task:
        names, parts = [f"draw/{i}" for i in range(20)], {"tune": 0, "calibrate": 10, "seed": 0}
        stages, model = [Stage(toys.Draw, (shift,))], Record("a draw", digest="0" * 64)
        return Task.of(
            "drawn", range(20), stages, size=10, names=names, unit="draw", model=model, score="s", **parts
        )

    run_here(task(1.0).job, RunFolder(tmp_path), limit=1)
    with pytest.raises(InvalidInput, match=r"Draw's shift '1\.0' and not '2\.0'"):
        task(2.0).write(RunFolder(tmp_path))


@pytest.mark.parametrize("name", ["units", "device", "versions", "code", "shards"])
def test_a_configuration_may_not_hide_what_the_engine_writes(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"configuration must leave '{name}' to the engine"):
        Job.of("toy", range(4), [Stage(toys.Draw)], size=2, **{name: 3})


@pytest.mark.parametrize("value", [np.zeros(2), float("nan")], ids=str)
def test_a_configuration_that_no_file_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="configuration must be what JSON can hold"):
        Job.of("toy", range(4), [Stage(toys.Draw)], size=2, weights=value)


def test_our_own_code_counts_with_its_sub_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__.py", "rooms/__init__.py", "rooms/doors.py"):
        (tmp_path / "pac_toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pac_toy" / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sources, "OURS", ("pac_toy",))
    found = [find_versions([])["pac-sets"]]
    (tmp_path / "pac_toy" / "rooms" / "doors.py").write_text("DOORS = 2\n")
    found.append(find_versions([])["pac-sets"])
    (tmp_path / "pac_toy" / "rooms" / "doors.py").rename(tmp_path / "pac_toy" / "doors.py")
    found.append(find_versions([])["pac-sets"])
    assert len(set(found)) == 3


@pytest.mark.usefixtures("engine")
@pytest.mark.xdist_group("ray")
def test_a_worker_with_other_code_of_the_scorer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot travel with the stage, because it is installed there."""
    describe = Job.describe
    monkeypatch.setattr("cluster.workers.is_installed", lambda place: True)

    def elsewhere(asked: Job) -> dict[str, Any]:
        found = describe(asked)
        return found | {"code": dict.fromkeys(found["code"], "other")}

    monkeypatch.setattr(Job, "describe", elsewhere)
    with pytest.raises(WorkerDiffers, match=r"code of toy_scorers \([0-9a-f]{32} there, other here\)"):
        run(job(), RunFolder(tmp_path), workers=(1, 1))


def test_a_scorer_of_one_module_is_told_from_its_namesake(tmp_path: Path) -> None:
    stage = Stage(local(1.0))
    assert stage.describe(Digests()) == replace(stage, make=local(1.0)).describe(Digests())
    run_here(Job.of("toy", range(20), [stage], size=10), RunFolder(tmp_path), limit=1)
    assert len(files(tmp_path)) == 1
    with pytest.raises(InvalidInput, match=r"another version of Scaled"):
        run_here(Job.of("toy", range(20), [Stage(local(2.0))], size=10), RunFolder(tmp_path))


def test_an_import_after_many_constants_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python writes such an import with longer instructions."""
    many = "".join(f"    x{i} = {i}.5\n" for i in range(300))
    (tmp_path / "pac_toy_user.py").write_text(f"def use():\n{many}    from pac_toy_used import ONE\n")
    (tmp_path / "pac_toy_used.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = Sources()
    assert found.cover("pac_toy_user")
    assert set(found.code) == {"pac_toy_user", "pac_toy_used"}
