"""The scripts run as they are, and their results hold."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from pac_program import run as pac

from pac_core import (
    PACLevel,
    fit_threshold,
    ids_digest,
    read_certificate,
    read_descent,
    read_family,
    verify_descent,
)
from pac_core.tables import file_digest
from pac_rl import load_policy
from pac_rl.policy_files import SHIPPED

ROOT = Path(__file__).parent.parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / script), *arguments]
    clean = os.environ | {"PYTHONPATH": str(ROOT)}  # not the folders of tests that share our packages' names
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_half_cheetah_demo_ends_with_its_three_numbers(tmp_path: Path) -> None:
    done = run("demo_halfcheetah.py", "--smoke-test", "--out", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr
    results = tmp_path / "demo" / "results"
    for line in (
        "promised error   at most 10.00%",
        "measured error ",
        "times smaller than the paper's shape",
    ):
        assert line in done.stdout
    for figure in ("shapes_closed_steps.png", "shapes_closed_tubes.png", "guard_speed_episode.png"):
        assert (results / figure).read_bytes().startswith(b"\x89PNG")
        assert str(results / figure) in done.stdout
    assert [row["robot"] for row in table(results / "guard_demo.csv")] == ["unguarded", "guarded"]
    assert "not refuted by 256 test units" in done.stdout
    verified = pac("verify", results / "certificate.json", results / "certificate.scores.npz")
    assert verified.exit_code == 0, verified.output
    certificate = read_certificate(results / "certificate.json")
    assert (certificate.unit, certificate.predictor.threshold.n) == ("rollout", 320)
    again = run("demo_halfcheetah.py", "--smoke-test", "--out", str(tmp_path / "demo"))
    assert again.returncode == 0, again.stderr
    assert "epoch" not in again.stdout  # what was trained and rolled out is kept
    assert again.stdout.splitlines()[-8:] == done.stdout.splitlines()[-8:]


def test_every_figure_of_the_paper_from_nothing(tmp_path: Path) -> None:
    done = run("halfcheetah_all.py", "--smoke-test", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = tmp_path / "results"
    figures = {path.stem for path in results.glob("*.png")}
    paper = {"ablation", "steps", "levels_epsilon", "levels_delta", "tables_boxes", "tables_steps"}
    paper |= {"baselines_error", "baselines_size"}
    ours = {f"shapes_{case}_{kind}" for case in ("closed", "plans") for kind in ("steps", "sizes", "tubes")}
    assert figures == paper | ours | {"coverage"}
    for case in ("closed", "plans"):
        rows = {row["shape"]: row for row in table(results / f"shapes_{case}.csv")}
        assert all(row["refuted"] == "no" for row in rows.values())
        assert float(rows["box"]["size"]) < float(rows["max"]["size"]) < float(rows["joint"]["size"])
    assert all(row["as predicted"] == "yes" for row in table(results / "coverage.csv"))
    levels = {(row["epsilon"], row["delta"]) for row in table(results / "tables.csv")}
    assert ("0.05", "1e-05") in levels
    summary = json.loads((results / "summary.json").read_text())
    assert summary["design"]["seed"] == 0
    assert summary["design"]["policy"] == file_digest(SHIPPED)  # no path of this machine
    assert str(ROOT) not in (results / "summary.json").read_text()
    found = summary["results"]
    for name, rows in (("ablation", found["ablation"]), ("shapes_plans", found["shapes"]["plans"])):
        written = table(results / f"{name}.csv")
        assert [str(row["error"]) for row in rows] == [row["error"] for row in written]
    sizes = {row["shape"]: row["size"] for row in found["shapes"]["closed"]}
    assert sizes["box"] < sizes["joint"]
    assert sizes["features"] is None  # it is of two numbers, not of the whole state
    promise = found["certificate"]
    assert promise.startswith("The set of a new rollout misses its truth with probability at most 0.1;")
    assert "plots only" in summary["paper"]["published"]
    scores = np.load(results / "scores.npz")
    assert (scores["part"] == "calibrate").sum() == 320
    assert len(np.unique(scores["seeds"])) == 832
    # The certificate's threshold follows from the raw scores that are kept beside it.
    box = scores["closed_box"][scores["part"] == "calibrate"]
    certificate = read_certificate(results / "certificate.json")
    assert fit_threshold(box, PACLevel(0.1, 1e-3)).value == certificate.predictor.threshold.value
    for part in ("tune", "calibrate", "test"):
        assert certificate.parts[part].digest == ids_digest(scores["seeds"][scores["part"] == part])


def test_propagations_are_compared(tmp_path: Path) -> None:
    done = run("halfcheetah_propagation.py", "--smoke-test", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path / "results" / "propagation.csv")
    assert [row["propagation"] for row in rows] == ["one-step", "jacobian", "particles"] * 2
    assert all(row["refuted"] == "no" for row in rows)


def test_a_script_refuses_in_one_sentence(tmp_path: Path) -> None:
    done = run("halfcheetah_ablation.py", "--n", "1000", "--out", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "1,000 calibration units cannot prove epsilon=0.01" in done.stderr
    assert "(146 more)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "none").exists()


def test_the_policy_search_learns(tmp_path: Path) -> None:
    out = tmp_path / "policy.npz"
    options = ("--minutes", "0.1", "--steps", "60", "--directions", "8", "--best", "4", "--out", str(out))
    done = run("train_policy.py", *options)
    assert done.returncode == 0, done.stderr
    returns = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert max(returns) > returns[0]
    assert load_policy(out).inputs == 17


def test_guards_are_compared_on_the_same_episodes(tmp_path: Path) -> None:
    done = run("halfcheetah_guard.py", "--smoke-test", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path / "results" / "guard_speed.csv")
    names = [row["guard"].split(",")[0] for row in rows]
    assert names == ["no guard", "mean", "worst member", "paper's tube", "ours"]
    assert all(row["violated"].endswith(" of 4") for row in rows)
    assert float(rows[0]["return"]) == max(float(row["return"]) for row in rows)
    for figure in ("guard_speed.png", "guard_speed_episode.png"):
        assert (tmp_path / "results" / figure).read_bytes().startswith(b"\x89PNG")


def test_settings_of_the_planner_are_weighed_on_tune_episodes(tmp_path: Path) -> None:
    done = run("halfcheetah_guard_settings.py", "--smoke-test", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path / "results" / "guard_speed_settings.csv")
    assert [(row["horizon"], row["checked"], row["choice"]) for row in rows] == [
        ("2", "2", "return"),
        ("2", "1", "factor"),
    ]
    for row in rows:
        assert float(row["ours / mean"]) == float(row["return"]) / float(row["mean: return"])


def test_a_guarded_controller_is_certified_and_goes_on(tmp_path: Path) -> None:
    """Both kinds of certificates share a ledger; the same command again runs no episode."""
    for kind in ("episode", "tube"):
        arguments = ("--smoke-test", "--kind", kind, "--out", str(tmp_path / "first"))
        done = run("halfcheetah_guard_certificate.py", *arguments)
        assert done.returncode == 0, done.stderr
        assert "10 of 10 episodes, " in done.stdout
        assert "P(error in a fresh episode of exactly this controller at this scale) <= 0.4" in done.stdout
        again = run("halfcheetah_guard_certificate.py", *arguments)
        assert "a second" not in again.stdout, "no line of progress"
        found = read_descent(tmp_path / "first" / "results" / f"guard_speed_{kind}_certificate.json")
        assert str(found) in again.stdout
        assert all(check.holds for check in verify_descent(found, tmp_path / "guard-smoke-ledger"))
    assert "P(unsafe given accepted) <= " in done.stdout
    assert "with confidence 0.9, for" in done.stdout, "of the scale that was picked, not of one fixed before"
    family = read_family(tmp_path / "guard-smoke-ledger")
    assert (family.attempts, family.cost, family.budget) == (3, 0.9, 0.9), "two descents and a claim"
    shutil.copytree(tmp_path / "first", tmp_path / "copy", ignore=shutil.ignore_patterns("certify-*"))
    for folder in ("first", "copy"):  # another folder is no way around the ledger
        asked = ("--smoke-test", "--scale", "3", "--out", str(tmp_path / folder))
        other = run("halfcheetah_guard_certificate.py", *asked)
        assert other.returncode == 1
        assert "A descent is never extended" in other.stderr


def test_the_loop_learns_and_its_guards_are_compared(tmp_path: Path) -> None:
    done = run("halfcheetah_pets.py", "--smoke-test", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "round 2: model error" in done.stdout
    rows = table(tmp_path / "results" / "pets.csv")
    guards = [row["guard"] for row in rows]
    assert guards[:4] == ["no guard", "mean", "worst member", "paper's tube"]
    assert guards[4].startswith("ours, scale")
