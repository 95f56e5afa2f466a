"""From forecasts to certificates: split, tune, write down the look, calibrate, issue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pac_core.arrays import Array, check_labels, check_list, check_numbers, convert_like
from pac_core.bounds import Entry, PACLevel, max_errors, min_samples
from pac_core.certificates.certificate import (
    Certificate,
    MenuRecord,
    Record,
    SplitRecord,
    as_document,
    check_unit,
    issue,
    memberships_digest,
    scores_digest,
)
from pac_core.certificates.ledger import Opening, open_split, read_family, read_ledger, score_digest
from pac_core.errors import InvalidInput, TooManyFailures
from pac_core.exchangeability import AS_THEY_COME, GIVEN, compare_scores, sort_by
from pac_core.fitting import score_fitter
from pac_core.forecasts import GaussianForecast, LogitForecast, check_forecast, drop_failed, with_lengths
from pac_core.sets.predictor import FitScore, Likelihood, Predictor, Score, score_units
from pac_core.splits import Splits, digest_of, ids_digest, split, unique_names, unit_names
from pac_core.thresholds import Groups, fit_threshold


@dataclass(frozen=True, eq=False)
class Request:
    """A score on the menu, the levels asked for it, and the domain of the forecasts it scores.

    scores: called after the ledger is written; returns them `[n]` or as `ShardedScores`
    of: which forecasts, where several of the same units are at hand: the same score of others is another
    held_out: `[m]` scores of other units, which it was not fitted on, to compare with; None if there are none
    """

    score: Score
    levels: tuple[PACLevel, ...]
    scores: Callable[[], Any]
    domain: tuple[Any, ...] | None = None
    of: str = ""
    held_out: Any = None

    @property
    def digest(self) -> str:
        """What the ledger knows it by."""
        return score_digest(self.score, self.of)


@dataclass(frozen=True, eq=False)
class Certified:
    """What `certify` made.

    look: what the ledger holds; its `cost` is what the certificates cost together
    ids, scores: `[n]` of the calibration units, for `verify`
    certificates, refused: one per level, and the levels for which too many calibration units failed
    parts: the split, whose `test` part nobody has looked at; None if the scores were given
    """

    look: Opening
    score: Score
    ids: Any
    scores: Array
    certificates: tuple[Certificate, ...]
    parts: Splits | None = None
    refused: tuple[PACLevel, ...] = ()


def certify(
    forecast: LogitForecast | GaussianForecast,
    truth: Any,
    levels: PACLevel | Sequence[PACLevel],
    *,
    ids: Any,
    tune: int,
    calibrate: int,
    ledger: str | os.PathLike[str],
    seed: int = 0,
    score: str | None = None,
    fit: FitScore | None = None,
    groups: Any = None,
    unit: str = "unit",
    train_ids: Iterable[Any] = (),
    ids_name: str = "ids",
    train: str = "not named",
    model: Record | None = None,
    data: Record | None = None,
    order: Any = None,
    held_out: tuple[Any, Any] | None = None,
) -> Certified:
    """Certificates at one or more levels from one look at `calibrate` of the units.

    forecast, truth: of all units, a row each; rows that depend on each other (frames of one video)
        are not units: give one score per group to `certify_scores` then
    ids, tune, calibrate, seed: names of the units, how many to use for what, and the draw; the rest is
        left in `parts.test`
    score: by name, with the same default as `fit_sets`; with tune=0, "plain", the forecast as it is
    fit: instead of a name, chooses the score on the tune part, for the first level
    groups: `[N]` names of all units' groups, or `Groups`: a threshold for each (Mondrian)
    ledger: a folder; the menu goes into it before any calibration score is computed, and a look that
        shares a unit with an earlier one is refused
    unit, train, train_ids, model, data: for the certificate; a unit among `train_ids` is refused
    order: `[N]` when each unit was collected, numbers or times; by default in the order of the rows
    held_out: forecast and truth of units of another collection, on which nothing was fitted. In the same look
        the calibration scores are compared with both, for the report only: `Certificate.world`

    What can be refused without a look is refused before the ledger is written. If too many calibration units
    failed for some of the levels, those are in `refused`; for all: `TooManyFailures`.

    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> folder = tempfile.TemporaryDirectory()
    >>> made = certify(LogitForecast(logits), labels, PACLevel(0.1, 1e-3), ids=range(1000), tune=200,
    ...                calibrate=500, ledger=f"{folder.name}/ledger", unit="image")
    >>> made.certificates[0].predictor.threshold.n, made.parts.test.n
    (500, 300)
    >>> folder.cleanup()
    """
    wanted = _levels(levels)
    named = (("model", model, Record | None), ("data", data, Record | None), ("train", train, str))
    for name, given, kind in named:
        if not isinstance(given, kind):
            raise InvalidInput(f"{name} must be {'a text' if kind is str else 'a Record'}, got {given!r}")
    known = check_list("train_ids", train_ids)
    parts = split(ids, tune=tune, calibrate=calibrate, seed=seed, train=known)
    for level in wanted:
        max_errors(parts.calibrate.n, level)
    names = unit_names("ids", ids)
    check_unit(unit)
    if isinstance(forecast, LogitForecast):
        truth = check_labels("labels", truth, *forecast.logits.shape)
        forecast.check()
    else:
        truth = with_lengths(truth, check_forecast(forecast).check(truth, failures=True))
    if len(truth) != len(names):
        raise InvalidInput(f"forecast and ids must be of as many units, got {len(truth)} and {len(names)}")
    tuning, rows = parts.tune.rows, parts.calibrate.rows
    times = None if order is None else np.argsort(sort_by(order, len(names)))[rows]
    grouping = Groups.of(groups, truth, forecast.domain)
    chosen, chosen_truth = forecast.take(rows), truth[rows]
    if fit is not None and score is not None:
        raise InvalidInput(f"fit and score both say what is fitted: give one, got score={score!r} as well")
    choose = fit or score_fitter(forecast.domain, score, calibrate=parts.calibrate.n, others=wanted[1:])
    if not tune and (fit is not None or score not in (None, "plain")):
        raise InvalidInput(f"{'fit' if fit else f'score={score!r}'} is fitted on tune units, but tune is 0")
    fitted = choose(*drop_failed(forecast.take(tuning), truth[tuning]), wanted[0]) if tune else Likelihood()
    if held_out is None and tune and fit is None and score == "plain":  # which looks at no tune unit
        held_out = forecast.take(tuning), truth[tuning]
    return certify_scores(
        fitted,
        lambda: score_units(fitted, chosen, chosen_truth),
        wanted,
        ids=names[rows],
        ledger=ledger,
        data=_content(chosen, chosen_truth),
        domain=forecast.domain,
        parts=parts,
        unit=unit,
        train=train_record(train, known),
        tune=Record("tune", parts.tune.n, parts.tune.digest),
        test=Record("test", parts.test.n, parts.test.digest),
        model=model,
        source=data,
        split=SplitRecord(seed, ids_digest(names), ids_name),
        order=times,
        held_out=None if held_out is None else score_units(fitted, *held_out),
        groups=grouping and replace(grouping, names=grouping.names[rows]),
    )


def _levels(levels: PACLevel | Iterable[PACLevel]) -> list[PACLevel]:
    wanted = [levels] if isinstance(levels, PACLevel) else check_list("levels", levels)
    if not wanted:
        raise InvalidInput("levels must be one or more, got none")
    return wanted


def _content(forecast: Any, truth: Any) -> str:
    """A digest of forecasts and truths, unit by unit, whatever their order."""
    if isinstance(forecast, LogitForecast):
        arrays = [np.full(len(truth), forecast.tau), forecast.logits, truth]
    else:
        states = forecast.check(truth, failures=True)
        arrays = [convert_like(np.zeros(1), array) for array in (forecast.mean, forecast.var, states)]
    return digest_of(
        b"".join(np.asarray(row, dtype=np.float64).tobytes() for row in unit)
        for unit in zip(*arrays, strict=True)
    )


def train_record(name: str, ids: Sequence[Any]) -> Record:
    """What the model was trained on, with the digest of its ids where they are known."""
    return Record(name, len(ids), ids_digest(ids)) if ids else Record(name)


def certify_scores(
    score: Score,
    scores: Callable[[], Array],
    levels: PACLevel | Sequence[PACLevel],
    *,
    ids: Any,
    ledger: str | os.PathLike[str],
    data: str,
    domain: tuple[Any, ...] | None = None,
    held_out: Any = None,
    **about: Any,
) -> Certified:
    """The same for a score that is fitted already; `scores()` is called after the ledger is written.

    data: a digest of what the scores come from; held_out: `[m]` scores of units on which nothing was fitted
    about: of `certify_several`: parts, source, order, groups; of `issue`: unit, train, tune, test, model,
        split
    """
    asked = Request(score, tuple(_levels(levels)), scores, domain, held_out=held_out)
    made = certify_several([asked], ids=ids, ledger=ledger, data=data, **about)[0]
    if not made.certificates:
        fit_threshold(made.scores, made.refused[-1], groups=about.get("groups"))  # raises why, with numbers
    return made


def plan_groups(groups: Groups, ids: Any) -> dict[str, Any]:
    """What the ledger holds of groups before the look: who is in which, as a digest, and how many."""
    names, counts = (part.tolist() for part in np.unique(groups.names, return_counts=True))
    of, members = "units" if groups.labels is None else "labels", memberships_digest(groups, ids)
    about = {"column": groups.column, "of": of, "merge_small": groups.merge_small, "memberships": members}
    return about | {"n": dict(zip(names, counts, strict=True))}


def certify_several(
    menu: Sequence[Request],
    *,
    ids: Any,
    ledger: str | os.PathLike[str],
    data: str,
    parts: Splits | None = None,
    source: Record | None = None,
    plan: Mapping[str, Any] | None = None,
    order: Any = None,
    groups: Groups | None = None,
    **about: Any,
) -> list[Certified]:
    """Certificates for several scores from one look at the same calibration units, in their order.

    The menu, and the `plan` that led to it in plain JSON, goes into the ledger before any calibration score
    is computed, and so does what the scores are compared with (`compare_scores`), for the report only, and
    who is in which of the `groups`. A score none of whose levels can be proved has no certificates.
    order: `[n]` when each unit was collected, by default as they come
    """
    check_unit(about.get("unit"))
    names = unique_names("ids", ids)
    places = None if order is None else sort_by(order, len(names))
    first = AS_THEY_COME if order is None else GIVEN
    references = [{first: ()} | _held_out(asked.held_out) for asked in menu]
    for level in (level for asked in menu for level in asked.levels):
        max_errors(len(names), level)
    for asked in menu:  # what could not be issued or written is refused before the look, with made-up scores
        draft = np.zeros(min_samples(asked.levels[0]) if groups is None else len(names))
        for level in asked.levels if groups is not None else asked.levels[:1]:
            predictor = Predictor(asked.score, fit_threshold(draft, level, groups=groups), asked.domain)
            as_document(issue(predictor, draft, data=source, groups=groups, **about))
    entries = [Entry(asked.digest, level.epsilon, level.delta) for asked in menu for level in asked.levels]
    if groups is not None:
        plan = {**(plan or {}), "groups": plan_groups(groups, ids)}
    compared = list(dict.fromkeys(name for some in references for name in some))
    look = open_split(ledger, replace(Opening.of(ids, entries, data, plan), compared=compared))
    known = next(one.compared for one in read_ledger(ledger) if one == look) or ()  # if it is repeated
    about["menu"] = MenuRecord(len(entries), look.cost, read_family(ledger))
    made = []
    for asked, some in zip(menu, references, strict=True):
        found = asked.scores()
        issued, refused = [], []
        ordered = found if places is None else check_numbers("scores", found, "[N]")[places]
        world = {name: compare_scores(ordered, some[name]) for name in some if name in known}
        for level in asked.levels:
            try:
                predictor = Predictor(asked.score, fit_threshold(found, level, groups=groups), asked.domain)
            except TooManyFailures:
                refused.append(level)
            else:
                kept: Any = {"world": world, "groups": groups}
                issued.append(issue(predictor, found, ids=ids, data=source, **kept, **about))
        made.append(Certified(look, asked.score, ids, found, tuple(issued), parts, tuple(refused)))
    return made


def _held_out(scores: Any) -> dict[str, Any]:
    """Scores to compare with, by what the ledger calls them."""
    if scores is None:
        return {}
    array = check_numbers("held_out", scores, "[M]")
    return {f"{len(array):,} held-out units {scores_digest(array)[:12]}": array}
