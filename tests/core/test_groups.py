"""A threshold for each group: refusals, merging, sets, certificate, ledger, program, runs, figures."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pac_program import refused
from pac_program import run as pac
from scipy.stats import binom

from pac_core import (
    GaussianForecast,
    Groups,
    InvalidInput,
    LinearFeatures,
    LogitForecast,
    NotEnoughData,
    PACLevel,
    SecondLook,
    certify,
    evaluate,
    fit_sets,
    fit_tube,
    read_certificate,
    verify,
    write_certificate,
)
from pac_core.bounds import min_samples
from pac_core.certificates import Record, certify_scores, read_family, read_ledger
from pac_core.certificates.certificate import seal
from pac_core.errors import BadCertificate, SmallGroups, TooManyFailures
from pac_core.report import write_report
from pac_core.runs import RunFolder, Stage, Task, certify_run, run_here
from pac_core.sets import GivenScore, Predictor, threshold_value
from pac_core.thresholds import OTHER, GroupThreshold, fit_threshold

ROOT = Path(__file__).parents[2]
LEVEL = PACLevel(0.1, 0.05)


def fitted(scores: Any, level: PACLevel = LEVEL, **groups: Any) -> GroupThreshold:
    made = fit_threshold(scores, level, groups=Groups(**groups))
    assert isinstance(made, GroupThreshold)
    return made


def labelled(n: int = 600, seed: int = 0) -> tuple[LogitForecast, Any, Any]:
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 4))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return LogitForecast(logits), labels, rng.choice(["day", "night"], size=n)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 90), min_size=1),
    st.booleans(),
    st.integers(0, 9),
)
def test_counts_alone_decide_who_is_merged_refused_and_proved(
    sizes: dict[str, int], merge: bool, seed: int
) -> None:
    names = np.repeat(list(sizes), list(sizes.values()))
    small = {name for name, n in sizes.items() if n < needed_by(len(sizes))}
    scores = np.random.default_rng(seed).random(len(names))
    if small and not merge:
        with pytest.raises(SmallGroups) as refusal:
            fitted(scores, names=names)
        error = refusal.value
        assert set(error.small) == small
        assert all(f"{name!r} has {n}" in str(error) for name, n in error.small.items())
        assert f"at least {error.needed:,} calibration units" in str(error)
        assert error.needed == min_samples(error.level) > max(error.small.values())
        return
    if small:  # by hand: the smallest join them, one by one, until they can prove their share
        rest = sorted((n, name) for name, n in sizes.items() if name not in small)
        while rest and sum(sizes[name] for name in small) < needed_by(len(rest) + 1):
            small.add(rest.pop(0)[1])
        if sum(sizes[name] for name in small) < needed_by(len(rest) + 1):
            with pytest.raises(NotEnoughData, match=f"^{len(names)} calibration units cannot prove"):
                fitted(scores, names=names, merge_small=True)
            return
    made = fitted(scores, names=names, merge_small=merge)
    assert set(made.merged) == small
    each = {name: n for name, n in sizes.items() if name not in small}
    assert {name: one.n for name, one in made.groups.items() if name != OTHER} == each
    assert math.fsum(one.level.delta for one in made.groups.values()) <= LEVEL.delta * (1 + 1e-12)
    for name, one in made.groups.items():
        inside = scores[np.isin(names, list(small) if name == OTHER else [name])]
        assert one.value == np.sort(inside)[-1 - one.errors]


def needed_by(groups: int) -> int:
    return min_samples(PACLevel(LEVEL.epsilon, LEVEL.delta / groups))


def test_one_small_group_takes_the_next_smallest_with_it() -> None:
    names = ["big"] * 200 + ["middle"] * 90 + ["tiny"] * 3
    made = fitted(np.arange(293.0), names=names, merge_small=True)
    assert made.merged == ("middle", "tiny")
    assert {name: one.n for name, one in made.groups.items()} == {"big": 200, OTHER: 93}


def test_a_group_called_other_is_merged_with_the_small_ones() -> None:
    names = ["big"] * 100 + [OTHER] * 100 + ["tiny"] * 3
    made = fitted(np.arange(203.0), names=names, merge_small=True)
    assert made.merged == (OTHER, "tiny")
    assert made.groups[OTHER].n == 103
    assert made.names_of(["tiny", "big"]).tolist() == [OTHER, "big"]


def test_merging_is_refused_where_the_comparison_with_the_binomial_does_not_hold() -> None:
    with pytest.raises(InvalidInput, match="delta must be smaller to merge"):
        fitted(np.arange(6.0), PACLevel(0.3, 0.9), names=["a", "b", "c"] * 2, merge_small=True)


@pytest.mark.parametrize(("delta", "k"), [(0.6, 2), (0.66, 3)])
def test_merging_needs_one_error_more_than_allowed_to_be_expected(delta: float, k: int) -> None:
    """Of ten units at 0.3, three errors are expected: 2 + 1 are no more than that, 3 + 1 are."""
    assert binom.cdf(k, 10, 0.3) < delta < binom.cdf(k + 1, 10, 0.3)
    names, level = [*"aaabbbccdd"], PACLevel(0.3, delta)
    if k == 2:
        assert fitted(np.arange(10.0), level, names=names, merge_small=True).groups[OTHER].errors == 2
        return
    with pytest.raises(InvalidInput, match="delta must be smaller to merge"):
        fitted(np.arange(10.0), level, names=names, merge_small=True)


def test_ties_lie_inside_together_and_failed_units_count_in_their_group() -> None:
    names, scores = np.repeat(["a", "b"], 100), np.repeat([1.0, 2.0], 100)
    scores[[0, 100, 101]] = np.inf
    made = fitted(scores, names=names)
    assert [one.value for one in made.groups.values()] == [1.0, 2.0]
    assert (scores <= made.at(names)).sum() == 197
    allowed = made.groups["b"].errors
    scores[100 : 101 + allowed] = np.inf
    with pytest.raises(
        TooManyFailures, match=rf"^{allowed + 1} of 100 calibration units of the group 'b' failed"
    ):
        fitted(scores, names=names)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"names": ["a", ""]}, "must have a name each, got ''"),
        ({"names": ["a", "nan"]}, "must have a name each, got 'nan'"),
        ({"names": [1.0, np.nan]}, "whole numbers or text"),
        ({"names": [["a"]]}, r"shape \[N\]"),
        ({}, "got neither"),
        ({"labels": ["a"], "merge_small": True}, "in every set"),
    ],
)
def test_what_is_no_group_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Groups(**given)


def test_groups_that_do_not_fit_are_refused() -> None:
    forecast, labels, light = labelled()
    pairs = forecast, labels, forecast, labels, LEVEL
    for groups, words in (
        (light[:-1], "one entry per unit, got 599 for 600"),
        (Groups(labels=["a", "b"]), "one for each label, got 2"),
    ):
        with pytest.raises(InvalidInput, match=words):
            fit_sets(*pairs, groups=groups)
    each, one = fit_sets(*pairs, groups=light), fit_sets(*pairs)
    new = forecast.take(slice(0, 2))
    for groups, words in (
        (None, "groups must be given"),
        (["day", "dusk"], r"group must be one that was calibrated \('day', 'night'\), got 'dusk'"),
        (["day"], "one entry per unit, got 1 for 2"),
    ):
        with pytest.raises(InvalidInput, match=words):
            each.sets(new, groups)
    with pytest.raises(InvalidInput, match="one threshold was calibrated for all"):
        one.sets(new, ["day", "night"])
    with pytest.raises(InvalidInput, match="one for each group"):
        threshold_value(each.threshold)


@pytest.mark.parametrize("shape", ["box", "max", "joint", "features"])
def test_tubes_are_those_of_each_groups_own_threshold(shape: str) -> None:
    rng = np.random.default_rng(0)
    forecast = GaussianForecast(rng.normal(size=(200, 4, 2)), np.full((200, 4, 2), 0.5))
    fast = np.arange(200) % 3 == 0
    walk = lambda: forecast.mean + rng.normal(size=(200, 4, 2)) * np.where(fast, 3.0, 1.0)[:, None, None]  # noqa: E731
    options = {"features": LinearFeatures(("x",), np.eye(2)[:1])} if shape == "features" else {}
    truth = walk()
    made = fit_tube(forecast, walk(), forecast, truth, LEVEL, shape=shape, groups=fast, **options)
    tube = made.tube(forecast, fast)
    assert isinstance(made.threshold, GroupThreshold)
    for name, rows in (("True", fast), ("False", ~fast)):
        one = made.threshold.groups[name]
        alone = Predictor(made.score, one, made.domain).tube(forecast.take(rows))
        np.testing.assert_array_equal(tube.size()[rows], alone.size())
        np.testing.assert_array_equal(tube.support([1.0, 0.0])[rows], alone.support([1.0, 0.0]))
        np.testing.assert_array_equal(tube.contains(truth)[rows], alone.contains(truth[rows]))
        assert (~tube.contains(truth)[rows]).sum() == one.errors
    assert type(tube) is type(alone)
    mean = forecast.mean.copy()
    mean[3] = np.nan  # of the group True alone
    failed = GaussianForecast(mean, forecast.var, failed=np.arange(200) == 3)
    assert np.flatnonzero(made.tube(failed, fast).empty).tolist() == [3]
    assert not made.tube(failed, fast).contains(truth)[3]


def test_labels_of_a_group_with_too_few_units_are_in_every_set_even_of_a_failed_unit(tmp_path: Path) -> None:
    forecast, labels, _ = labelled()
    labels = np.where(labels == 3, 2, labels)  # so that nobody has seen 3
    groups = Groups(labels=["x", "x", "y", "rare"])
    made = fit_sets(forecast, labels, forecast, labels, LEVEL, groups=groups)
    logits = np.vstack([forecast.logits[:5], np.full((1, 4), np.nan)])
    sets = made.sets(LogitForecast(logits, failed=np.arange(6) == 5))
    assert sets.member[:, 3].all()
    assert sets.labels()[5] == [3]
    assert isinstance(made.threshold, GroupThreshold)
    assert made.threshold.always == ["rare"]
    about: Any = {"ids": range(600), "tune": 100, "calibrate": 400, "ledger": tmp_path / "book"}
    [one] = certify(forecast, labels, LEVEL, groups=groups, **about).certificates
    assert "The labels of rare are in every set" in one.promise
    assert "in whichever group its true label is, which nobody needs to know" in one.promise
    assert not all(check.holds for check in verify(one, np.zeros(400)))
    with pytest.raises(InvalidInput, match="one name per score"):
        fit_threshold(np.zeros(400), LEVEL, groups=groups)
    write_certificate(one, tmp_path / "c.json")
    assert read_certificate(tmp_path / "c.json").predictor.threshold == one.predictor.threshold
    few = Groups(labels=["a", "b", "c", "d"])
    with pytest.raises(SmallGroups):
        fit_sets(forecast, labels, forecast.take(slice(0, 40)), labels[:40], LEVEL, groups=few)


def test_every_group_has_a_row_and_any_of_them_refutes() -> None:
    forecast, labels, light = labelled(2000)
    sets = fit_sets(forecast, labels, forecast, labels, LEVEL).sets(forecast)
    hard = np.where(sets.contains(labels), "easy", "hard")
    hard[:30] = "hard"
    found = evaluate(sets, labels, LEVEL, by={"light": light}, groups=hard)
    assert [row.name for row in found.rows] == ["all", "group=easy", "group=hard", "light=day", "light=night"]
    assert found.promised == 3
    assert found.refuted
    assert "where group=hard" in found.verdict
    assert not evaluate(sets, labels, LEVEL, by={"group": hard}).refuted
    assert evaluate(sets, labels, LEVEL, by={"group": light}, groups=hard).rows == found.rows[:3]


@pytest.fixture
def made(tmp_path: Path) -> Any:
    forecast, labels, light = labelled()
    about: Any = {"ids": range(600), "tune": 100, "calibrate": 400, "ledger": tmp_path / "book"}
    return certify(forecast, labels, LEVEL, groups=Groups(light, column="light"), **about), light


def test_the_ledger_holds_the_groups_before_a_score_is_computed_and_charges_delta(tmp_path: Path) -> None:
    names = np.repeat(["a", "b"], 100)

    def fail() -> Any:
        [look] = read_ledger(tmp_path / "book")
        assert look.plan is not None
        assert look.plan["groups"]["n"] == {"a": 100, "b": 100}
        raise RuntimeError

    about: Any = {"ids": range(200), "ledger": tmp_path / "book", "data": "d", "unit": "unit"}
    levels = [PACLevel(0.1, 0.05), PACLevel(0.2, 0.05)]
    with pytest.raises(RuntimeError):
        certify_scores(GivenScore("mine"), fail, levels, groups=Groups(names), **about)
    assert read_family(tmp_path / "book").cost == 0.1  # not the smaller cost of levels that share n units
    made = certify_scores(GivenScore("mine"), lambda: np.arange(200.0), levels, groups=Groups(names), **about)
    assert made.look.cost == 0.1
    assert len(made.certificates) == 2
    with pytest.raises(SecondLook):
        certify_scores(GivenScore("mine"), fail, levels, groups=Groups(names[::-1]), **about)


def test_too_small_groups_are_refused_before_the_ledger(tmp_path: Path) -> None:
    forecast, labels, light = labelled()
    light[:3] = "dusk"
    about: Any = {"ids": range(600), "tune": 100, "calibrate": 400, "ledger": tmp_path / "book"}
    with pytest.raises(SmallGroups, match="'dusk' has"):
        certify(forecast, labels, LEVEL, groups=light, **about)
    assert not (tmp_path / "book").exists()


def test_a_certificate_follows_from_its_scores_and_memberships_only(made: Any) -> None:
    certified, light = made
    [one], of = certified.certificates, light[certified.parts.calibrate.rows]
    assert all(check.holds for check in verify(one, certified.scores, certified.ids, of))
    other = of.copy()
    other[[0, np.flatnonzero(of != of[0])[0]]] = other[[np.flatnonzero(of != of[0])[0], 0]]
    wrong = [check.name for check in verify(one, certified.scores, certified.ids, other) if not check.holds]
    assert wrong[0] == "memberships"
    assert not all(check.holds for check in verify(one, certified.scores[::-1], certified.ids, of))
    assert not all(check.holds for check in verify(one, certified.scores, certified.ids))


@pytest.mark.parametrize(
    "edit",
    [
        lambda groups: groups["thresholds"]["day"].update(value=0.5),
        lambda groups: groups["thresholds"]["day"].update(errors=99),
        lambda groups: groups["thresholds"]["day"].update(n=groups["thresholds"]["day"]["n"] + 1),
        lambda groups: groups["thresholds"]["day"].update(delta=0.05),
        lambda groups: groups["thresholds"]["day"].update(value=None, delta=None),
        lambda groups: groups["thresholds"].update(dusk=groups["thresholds"].pop("day")),
        lambda groups: groups.update(merged=["dusk"]),
        lambda groups: groups.update(labels=["day", "night", "day", "night"]),
        lambda groups: groups.update(memberships="0" * 64),
        lambda groups: groups.update(more=1),
        lambda groups: groups.pop("column"),
    ],
)
def test_an_edited_certificate_is_caught(made: Any, tmp_path: Path, edit: Any) -> None:
    """Even with a new seal: it is refused, or does not follow from the scores."""
    certified, light = made
    path = tmp_path / "c.json"
    write_certificate(certified.certificates[0], path)
    document = json.loads(path.read_text())
    edit(document["groups"])
    path.write_text(json.dumps(document))
    with pytest.raises(BadCertificate, match="changed after it was written"):
        read_certificate(path)
    path.write_text(json.dumps(document | {"seal": seal(document)}))
    try:
        one = read_certificate(path)
    except BadCertificate:
        return
    checks = verify(one, certified.scores, certified.ids, light[certified.parts.calibrate.rows])
    assert not all(check.holds for check in checks)


@pytest.mark.parametrize("group", ["light", "label", "label:groups.txt"])
def test_the_program_knows_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    monkeypatch.chdir(tmp_path)
    forecast, labels, light = labelled(1500)
    data = {
        "logits": forecast.logits,
        "labels": labels,
        "light": light,
        "ids": [f"i{i}" for i in range(1500)],
    }
    np.savez("data.npz", **data)
    Path("groups.txt").write_text("cat\ncat\ndog\ndog\n")
    asked = ("--epsilon", 0.1, "--delta", 0.05, "--tune", 200, "--calibrate", 800)
    answer = pac("fit", "data.npz", *asked, "--group", group)
    assert answer.exit_code == 0, answer.output
    for file in ("data.npz", "certificate.scores.npz"):
        answer = pac("verify", "certificate.json", file, "--ledger", "pac-ledger")
        assert answer.exit_code == 0, answer.output
        assert "ok  memberships" in answer.output
    answer = pac("evaluate", "certificate.json", "data.npz")
    name = {"light": "light=night", "label": "label=3"}.get(group, "label=dog")
    assert answer.exit_code == 0
    assert name in answer.output
    assert "in each group" in answer.output
    answer = pac("sets", "certificate.json", "data.npz")
    assert answer.exit_code == 0
    assert answer.output.count("\n") == 1501
    if group == "light":
        np.savez("dusk.npz", **(data | {"light": np.full(1500, "dusk")}))
        refused(pac("sets", "certificate.json", "dusk.npz"), "('day', 'night'), got 'dusk'")
        del data["light"]
        np.savez("none.npz", **data)
        refused(pac("sets", "certificate.json", "none.npz"), "must hold the group of each unit as 'light'")
    else:
        refused(pac("sets", "certificate.json", "data.npz", "--group", "dusk"), "--group")


def test_the_program_refuses_groups_it_cannot_have(tmp_path: Path) -> None:
    np.savez(tmp_path / "scores.npz", scores=np.arange(300.0), ids=range(300), of=["a"] * 297 + ["b"] * 3)
    asked = ("fit", tmp_path / "scores.npz", "--epsilon", 0.1, "--delta", 0.05, "--out", tmp_path / "c.json")
    refused(pac(*asked, "--group", "missing"), "label or an array of", "got 'missing'")
    refused(pac(*asked, "--group", "label"), "for forecasts of labels")
    refused(pac(*asked, "--group", "of"), "at least 36 calibration units", "'b' has 3")
    refused(pac(*asked, "--merge-small"), "got no --group")
    assert pac(*asked).exit_code == 0
    refused(pac("evaluate", tmp_path / "c.json", tmp_path / "scores.npz"), "bare scores")


class Draw:
    """Logits, labels and the group of each unit, from its id."""

    def __init__(self, *, device: str = "cpu") -> None: ...

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        forecast, labels, light = labelled(1000)
        ids = np.asarray(shard.ids)
        return {"ids": ids, "logits": forecast.logits[ids], "labels": labels[ids], "group": light[ids]}


@pytest.mark.parametrize("groups", ["group", "label", Groups(labels=["x", "x", "y", "y"], column="label")])
def test_a_run_is_certified_by_group_and_its_page_shows_the_groups(tmp_path: Path, groups: Any) -> None:
    about: Any = {"names": [str(i) for i in range(1000)], "unit": "image", "model": Record("toy"), "seed": 0}
    task = Task.of("toy", range(1000), [Stage(Draw)], size=100, tune=200, calibrate=400, **about)
    folder, book = RunFolder(tmp_path / "run"), tmp_path / "book"
    task.write(folder)
    run_here(task.job, folder)
    for _ in range(2):  # the same look again is no other
        made, [finding] = certify_run(task, folder, [LEVEL], book, score="paper", groups=groups)
    assert finding.evaluation is not None
    assert finding.evaluation.promised == 1 + len(made.certificates[0].predictor.threshold.groups)
    forecast, labels, light = labelled(1000)
    rows = task.results(folder).parts.calibrate.rows
    asked = (
        light[rows]
        if groups == "group"
        else Groups(labels=groups.labels if isinstance(groups, Groups) else range(4))
    )
    whole = Predictor(
        made.score, fit_threshold(made.scores, LEVEL, groups=Groups.of(asked, labels[rows], forecast.domain))
    )
    assert whole.threshold.groups == made.certificates[0].predictor.threshold.groups  # type: ignore[attr-defined]
    answer = pac("verify", f"{folder}/{finding.file}", f"{folder}/scores.parquet", "--ledger", book)
    assert answer.exit_code == 0, answer.output
    with pytest.raises(SecondLook):
        certify_run(task, RunFolder(tmp_path / "run"), [LEVEL], book, score="paper")
    write_report([str(folder)], str(tmp_path / "page.html"))
    assert "A threshold for each group" in (tmp_path / "page.html").read_text()
    with pytest.raises(InvalidInput, match="groups must be stored by the run"):
        certify_run(task, folder, [LEVEL], tmp_path / "other", groups="speed")


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("| starts | n, k | T |", "rollouts"),
        ("| superclass | n, k | one T: mean error | own T: mean error | mean size of", "images"),
        ("| superclass | n, k | one T: mean error | own T: mean error | mean size,", "images_coarse"),
    ],
)
def test_the_tables_of_results_are_those_of_the_files(head: str, name: str) -> None:
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(head))
    file = (ROOT / "benchmarks" / "published" / "groups" / f"{name}.csv").read_text().splitlines()[1:]
    rows = [row for row in file if not row.startswith("all") or name == "rollouts"]
    for line, row in zip(lines[start + 2 :], rows, strict=False):
        number = r"(?<![\d.-])\d[\d,]*\.?\d*"
        known = [
            float(text)
            for text in re.findall(r"(?<![\d.-])\d+\.?\d*", row.replace("..", " ").replace(",", " "))
        ]
        shown = re.findall(number, line.partition("|")[2].partition("|")[2])
        assert len(shown) >= 5
        for text in shown:
            digits = len(text.partition(".")[2])
            value = float(text.replace(",", "").rstrip("."))
            assert any(abs(value - other) <= 0.51 * 10.0**-digits for other in known), (text, row)
