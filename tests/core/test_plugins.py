"""Other packages add commands and shapes by entry points, found without importing them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pac_core import GaussianForecast, InvalidInput, PACLevel, plugins, read_certificate, write_certificate
from pac_core.certificates import issue
from pac_core.cli import main
from pac_core.fitting import check_score
from pac_core.sets import calibrate
from pac_core.tubes import check_shape, fit_shape, shape_names

MODULE = '''
import click
import pac_core

@click.command()
def hello():
    """Say hello."""
    raise pac_core.InvalidInput("hello must be said politely")

class Wide(pac_core.tubes.BoxShape):
    kind = "wide"
'''
ENTRY_POINTS = """
[pac_sets.commands]
hello = added_by_test:hello
broken = no_such_module_anywhere:command
[pac_sets.tasks]
greet = added_by_test:hello
[pac_sets.shapes]
wide = added_by_test:Wide
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real distribution on the path, as pip would leave it."""
    (tmp_path / "added_by_test.py").write_text(MODULE)
    info = tmp_path / "added_by_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added-by-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "added_by_test", raising=False)


@pytest.mark.usefixtures("installed")
def test_commands_are_listed_without_being_imported() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "hello" in result.output
    assert "broken" in result.output
    assert "added_by_test" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_a_plugin_command_runs_and_its_refusals_are_sentences() -> None:
    result = CliRunner().invoke(main, ["hello"])
    assert result.exit_code == 2
    assert "Error: hello must be said politely" in result.output


@pytest.mark.usefixtures("installed")
def test_a_broken_plugin_is_named_and_harms_no_other() -> None:
    result = CliRunner().invoke(main, ["broken"])
    assert result.exit_code == 2
    assert (
        "the plugin 'broken' of added-by-test (no_such_module_anywhere:command) does not load"
        in result.output
    )
    assert CliRunner().invoke(main, ["min-n", "--epsilon", "0.1", "--delta", "0.1"]).exit_code == 0


@pytest.mark.usefixtures("installed")
def test_a_plugin_shape_is_fitted_and_certified(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 3, 2))
    forecast = GaussianForecast(np.zeros_like(states), np.ones_like(states))
    level = PACLevel(0.1, 0.1)
    predictor = calibrate(fit_shape(forecast, states, level, shape="wide"), forecast, states, level)
    write_certificate(
        issue(predictor, predictor.score.scores(forecast, states), unit="rollout"), tmp_path / "c.json"
    )
    assert read_certificate(tmp_path / "c.json").predictor.score.kind == "wide"


@pytest.mark.usefixtures("installed")
def test_the_one_registry_knows_a_plugin_shape() -> None:
    assert shape_names() == ["joint", "max", "box", "features", "wide"]
    check_score("wide", ("trajectories", 3, 2))  # as pac run and pac tune ask, before any work
    with pytest.raises(
        InvalidInput, match="shape must be one of joint, max, box, features, wide, got 'ball'"
    ):
        check_shape("ball")


def test_an_unknown_plugin_is_named() -> None:
    with pytest.raises(InvalidInput, match="no plugin of kind 'models' is named 'resnet'; installed: none"):
        plugins.load("models", "resnet")


@pytest.mark.usefixtures("installed")
def test_a_task_of_another_package_is_run_by_name() -> None:
    listed = CliRunner().invoke(main, ["run", "--help"])
    assert [name in listed.output for name in ("rl", "imagenet", "otb", "greet")] == [True] * 4
    assert "added_by_test" not in sys.modules
    answer = CliRunner().invoke(main, ["run", "greet"])
    assert answer.exit_code == 2
    assert "hello must be said politely" in answer.output


def test_another_package_named_cluster_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """PyPI has one; installed after ours it hides it."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pac_core.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "run", "rl"], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"the package cluster at {tmp_path / 'cluster'} is not the one of pac-sets" in done.stderr
    assert "Traceback" not in done.stderr
