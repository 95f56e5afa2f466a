"""What the page shows of any run: headlines, coverage, sizes, tubes to play, a sweep; for task pages too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from pac_core.arrays import round_up
from pac_core.certificates.certificate import Certificate
from pac_core.certificates.descent import Descended
from pac_core.errors import InvalidInput
from pac_core.evaluation import Evaluation, error_interval
from pac_core.exchangeability import describe_world
from pac_core.report.charts import (
    Series,
    at_least,
    at_most,
    folded,
    heat_map,
    interval_chart,
    join,
    line_chart,
    paragraph,
    share_text,
    table,
)
from pac_core.report.stored import Chapter, Headline, Section, StoredRun
from pac_core.runs.reading import ALL, read_groups
from pac_core.sets.kinds import relative_widths, width_remarks
from pac_core.sets.predictor import describe_promise
from pac_core.thresholds import GroupThreshold, Threshold

VOIDS = (
    "{unit}s from another source, or under other conditions, than the calibration {unit}s",
    "another model, or settings, than those named below",
    "a choice of model, score or level made after looking at the calibration {unit}s",
)
"""What voids a certificate's promise, whatever the task."""


def show_runs(runs: Sequence[StoredRun]) -> Chapter:
    """What the certificates and forecasts of any task's runs say."""
    heads = [head for run in runs for head in certificate_headlines(run)]
    sections = [
        section
        for run in runs
        for section in (*coverage_sections(run), *tube_sections(run), *sweep_sections(run))
    ]
    return Chapter(f"{runs[0].name}: {say_units(runs)}", heads, sections)


EPISODES_VOID = (
    "episodes left out, or counted in the order in which they ended instead of that in which they began",
    "another controller, model or setting, other starts or conditions",
    "the same evaluation begun anew elsewhere, until it passed",
)
"""What voids a certificate of whole episodes."""


def show_descent(done: Descended) -> Chapter:
    """A certificate of whole episodes, or of losses, and how the evidence grew."""
    plan, sure = done.plan, done.certified is not None
    which = "The expected loss of a new {} is" if plan.loss else "A new {} is an error with probability"
    what = f"{which.format(plan.unit)} at most {at_most(plan.level.epsilon)}"
    verdict = "Certified" if sure else "Not yet" if done.open else "Not certified"
    named = "" if len(plan.scales) == 1 and isinstance(plan.scales[0], str) else f" at {done.certified}"
    promise = f"{what}{named if sure else ''}, with confidence {at_least(plan.level.delta)}."
    seen = "; ".join(f"{one.errors:.4g} in {one.n:,} at {one.scale}" for one in done.trials)
    measured = f"{'Loss' if plan.loss else 'Errors'}: {seen}. Counted: {plan.error}."
    about = f"New {plan.unit}s drawn like these; what was tested has the fingerprint {plan.controller[:12]}."
    held = True if sure else None if done.open else False
    head = Headline(promise, measured, held, verdict, about, EPISODES_VOID)
    return Chapter(f"Whole {plan.unit}s", [head], descent_sections(done))


def show_certificate(one: Certificate) -> Chapter:
    """A certificate by itself: its promise, its groups, and its notes."""
    body = join([*_groups_table(one.predictor.threshold), *_notes(one)])
    return Chapter(f"{one.unit}s", [_headline(one)], [Section("What it says", body)] if body else [])


def show_monitor(state: Mapping[str, Any]) -> Chapter:
    """What the file of `pac watch` says."""
    wealth, alarm = sum(state["stakes"]) + (state["units"] + 1) ** -0.5, state["alarm"]
    word = "ALARM: they are not" if alarm else "No alarm, which proves nothing"
    text = f"{word}. Wealth {wealth:.3g} after {state['units']:,} units, alarm at {1 / state['alpha']:g}."
    title = "Are new units still drawn as the calibration units were?"
    return Chapter("Run time", (), [Section(title, paragraph(text, "note" if alarm else ""))])


def descent_sections(done: Descended) -> list[Section]:
    """How the evidence grew, of a plan that bets: the wealth after each episode, and what it must reach."""
    plan = done.plan
    if plan.bets is None:
        return []
    lines = [
        Series(str(scale), range(1, len(losses) + 1), plan.bets.log_wealth(losses) / np.log(10))
        for scale, losses in zip(plan.scales, done.errors, strict=False)
        if isinstance(losses, tuple) and losses
    ]
    if not lines:
        return []
    needed = -float(np.log10(plan.level.delta))
    words = (
        f"Each {plan.unit} without a loss multiplies the wealth of a bet against a risk of "
        f"{plan.level.epsilon:g}, and each error divides it. Once it reaches 1 / delta, a risk that large "
        "would have been luck of less than delta, however often anybody looked on the way."
    )
    alt = f"log10 of the wealth after each {plan.unit}, and the line at {needed:.2g} that proves the level"
    axes: Any = {"x": f"{plan.unit}s, in the order of their ids", "y": "log10 of the wealth", "alt": alt}
    chart = line_chart(lines, **axes, limits={"enough": needed})
    return [Section("How the evidence grew", join([paragraph(words), chart]))]


def say_units(runs: Sequence[StoredRun]) -> str:
    """How many units there are, in words."""
    return f"{sum(int(run.about.get('units', 0)) for run in runs):,} {runs[0].unit}s"


def certificate_headlines(run: StoredRun) -> list[Headline]:
    """A headline for each certificate of a run; of a sweep's one for all of them."""
    found = [_headline(one, run.tests[name]) for name, one in run.certificates.items()]
    if issued := [row for row in run.sweep if row["file"] != "refused"]:
        levels = {(row["epsilon"], row["delta"]) for row in issued}
        refuted = sum(row["refuted"] == "yes" for row in issued)
        cost = next((one.menu.cost for one in run.certificates.values() if one.menu), None)
        sure = "" if cost is None else f", with confidence {at_least(cost)}"
        promise = f"All {len(issued)} certificates of the sweep over {len(levels)} levels hold{sure}."
        measured = f"The test part refutes {refuted} of {len(issued)}. Each was chosen on tune units only, "
        measured += (
            "and all were proved in one look; levels of one score cost less than the sum of their deltas."
        )
        verdict = "Refuted by the test" if refuted else "Certified, and not refuted by the test"
        about = f"New {run.unit}s drawn like the calibration {run.unit}s."
        found.append(Headline(promise, measured, not refuted, verdict, about, _voids(run.unit)))
    return found


def _headline(one: Certificate, test: Evaluation | tuple[int, int] | None = None) -> Headline:
    threshold, (domain, *_) = one.predictor.threshold, one.predictor.domain or ("",)
    what = {"labels": "label set", "vectors": "region", "trajectories": "tube"}.get(domain, "set")
    each = ""
    if isinstance(threshold, GroupThreshold):
        known = f"in each {threshold.column}, which is known"
        each = f" {known if threshold.labels is None else 'whatever the group of its true label is'}"
    whose, epsilon = describe_promise(one.predictor.score, one.unit, threshold.level.epsilon)
    promise = (
        f"The {what} of {whose} contains the truth with probability at least {at_least(epsilon)}{each}, "
        f"with confidence {at_least(threshold.level.delta)}."
    )
    about = f"New {one.unit}s drawn like the {threshold.n:,} calibration {one.unit}s; "
    about += f"model: {one.model.name}."
    return Headline(promise, *_say_test(test, one), about, _voids(one.unit))


def _notes(one: Certificate) -> list[Markup]:
    notes = [paragraph(remark, "note") for remark in one.predictor.remarks]
    return notes + [paragraph(f"{text[0].upper()}{text[1:]}", "small") for text in describe_world(one.world)]


def _voids(unit: str) -> tuple[str, ...]:
    return tuple(text.format(unit=unit) for text in VOIDS)


def _say_test(test: Evaluation | tuple[int, int] | None, one: Certificate) -> tuple[str, bool | None, str]:
    if test is None:
        return "Not measured: there are no test units here.", None, "Certified, not tested"
    pair = isinstance(test, tuple)
    errors, n = test if isinstance(test, tuple) else (test.all.errors, test.all.n)
    low, high = error_interval(errors, n) if pair else test.all.interval  # type: ignore[union-attr]
    held = low <= one.predictor.threshold.level.epsilon and (isinstance(test, tuple) or not test.refuted)
    return (
        (
            f"{errors:,} of {n:,} test {one.unit}s were missed: {share_text(errors / n)} "
            f"(98% interval {share_text(low)} to {share_text(high)})."
        ),
        held,
        "Certified, and not refuted by the test" if held else "Refuted by the test",
    )


def coverage_sections(run: StoredRun) -> list[Section]:
    """Error with its exact interval, and sizes, for each certificate."""
    rows, charts, notes = [], [], []
    for name, one in run.certificates.items():
        test, level = run.tests[name], one.predictor.threshold.level
        notes += _notes(one)
        if test is None:
            continue
        at = f"ε = {level.epsilon:g}, δ = {level.delta:g}"
        errors, n = test if isinstance(test, tuple) else (test.all.errors, test.all.n)
        interval = error_interval(errors, n)
        alt = f"Measured error {share_text(errors / n)}, promised at most {at_most(level.epsilon)}."
        rows_ = [(at, errors / n, *interval)]
        charts.append(interval_chart(rows_, limit=level.epsilon, alt=alt, x="share of test units missed"))
        row: dict[str, Any] = {"level": at, f"test {run.unit}s": n, "missed": errors}
        row |= {"98% interval": f"{share_text(interval[0])} to {share_text(interval[1])}"}
        if isinstance(test, Evaluation):
            whole = test.all
            row |= {"mean size": whole.mean, "median": whole.median, "largest": whole.largest}
            row |= {"empty sets": whole.empty}
            notes.append(paragraph(f"Sizes ({test.size_in}) compare sets of the same kind of unit.", "small"))
            charts += _size_charts(run, name)
            charts += _groups_table(one.predictor.threshold, test)
        rows.append(row)
    looked = ("calibrate", "test") if run.certificates else ()  # before the look, nobody reads that part
    failed = {part: len(run.results.failed(part)) for part in looked}
    if lost := {part: n for part, n in failed.items() if n}:
        words = ", ".join(f"{n:,} {part} {run.unit}s" for part, n in lost.items())
        notes.append(paragraph(f"{words} have no forecast; they count as errors.", "note"))
    body = Markup("").join([table(rows), *charts, *dict.fromkeys(notes)])
    return [Section("Coverage and sizes", body)] if body else []


def _groups_table(threshold: Threshold, test: Evaluation | None = None) -> list[Markup]:
    """Each group with its threshold and what the test part says of it, if there is one."""
    if not isinstance(threshold, GroupThreshold):
        return []
    known_rows, rows = test.rows[1 : test.promised] if test else (), []
    tested = {row.name.partition("=")[2]: row for row in known_rows}
    for name, one in threshold.groups.items():
        row: dict[str, Any] = {"group": name, "n": one.n, "k": one.errors, "T": round_up(one.value, 4)}
        row["δ"] = one.level.delta if one.value < np.inf else 0
        if found := tested.get(name):
            low, high = map(share_text, found.interval)
            row |= {"tested": found.n, "missed": found.errors, "98% interval": f"{low} to {high}"}
        rows.append(row)
    known = (
        f"by {threshold.column}, known when a set is made" if threshold.labels is None else "of true labels"
    )
    return [paragraph(f"A threshold for each group, {known}:"), table(rows)]


def _size_charts(run: StoredRun, name: str) -> list[Markup]:
    steps, counts, found = run.step_sizes(name), run.label_counts(name), []
    if steps is not None:
        low, middle, high = np.nanquantile(steps, (0.05, 0.5, 0.95), axis=0)
        x = list(range(1, steps.shape[1] + 1))
        alt = f"The median size of a tube is {middle[0]:.3g} at step 1 and {middle[-1]:.3g} at step {x[-1]}."
        words = "median, and the range of nine tubes in ten"
        one = Series(words, x, middle.tolist(), low.tolist(), high.tolist())
        found.append(line_chart([one], x="step", y="size of the tube", alt=alt, zero=True))
    if counts is not None and counts.sum():
        last = int(np.flatnonzero(counts)[-1])
        shares = (counts[: last + 1] / counts.sum()).tolist()
        alt = f"Sets have up to {last} labels; {share_text(shares[1] if last else 0)} of them exactly one."
        one = Series("share of test units", list(range(last + 1)), shares)
        found.append(line_chart([one], x="labels in the set", y="share of test units", alt=alt, zero=True))
    return found


SHOWN = 12
"""Test units of the tube player."""


def tube_sections(run: StoredRun, names: Sequence[str] = ()) -> list[Section]:
    """Tubes of some test units to look at step by step; `names` are those of the state's numbers."""
    chosen = [
        (name, one)
        for name, one in run.certificates.items()
        if one.predictor.domain and one.predictor.domain[0] == "trajectories"
    ]
    if not chosen or run.task is None or not run.results.parts.test.n or run.results.domain() is None:
        return []
    _, one = chosen[0]
    threshold = one.predictor.threshold
    some = run.results.each("test", lambda read: (*read(ALL)[1:], read_groups(threshold, read)))
    _, rows, (forecast, truth, groups) = next(iter(some))
    sets = one.predictor.sets(forecast, groups)
    inside = np.asarray(sets.contains(truth))
    picked = [*np.flatnonzero(~inside)[:2].tolist(), *np.flatnonzero(inside).tolist()][:SHOWN]
    lower, upper = (np.asarray(end)[picked] for end in sets.box())
    marked, dims = truth.marked()[picked], lower.shape[-1]
    known = list(names) or [f"number {i}" for i in range(dims)]
    if dims != len(known):  # a tube of features
        features = getattr(one.predictor.score, "features", None)
        known = list(features.names) if features is not None else [f"number {i}" for i in range(dims)]
    data = {
        "names": known,
        "limits": [
            {"dim": known.index(name), "bound": bound, "upper": up}
            for name, bound, up in check_limits(run.limits, known)
        ],
        "units": [
            {"id": str(run.results.task.names[rows[row]]), "inside": bool(inside[row])}
            | {"low": outward(low, -1), "high": outward(high, 1)}
            | {"mean": shorten(mean), "truth": shorten(states)}
            for row, low, high, mean, states in zip(
                picked, lower, upper, np.asarray(sets.region.center)[picked], _seen(one, marked), strict=True
            )
        ],
    }
    level = one.predictor.threshold.level
    widths = relative_widths(np.asarray(sets.region.half_widths()), _seen(one, truth.marked()))
    notes = Markup("").join(paragraph(text, "note") for text in width_remarks(widths, known))
    lead = (
        f"{len(picked)} test {run.unit}s at ε = {level.epsilon:g}, δ = {level.delta:g}: up to two that were "
        "missed, then the first that were not. The band shows one number of the state; whether a unit was "
        "inside is decided by all numbers and steps together."
    )
    return [
        Section(
            "Tubes, step by step", notes + paragraph(lead) + player("tubes", data, "A tube, step by step")
        )
    ]


def _seen(one: Certificate, states: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The truth as the tube sees it: the state, or the features of it."""
    features = getattr(one.predictor.score, "features", None)
    return states if features is None else np.asarray(features.of(states))


def check_limits(
    limits: Sequence[tuple[str, float, bool]], names: Sequence[str]
) -> list[tuple[str, float, bool]]:
    """The limits on numbers that there are; refused if one is not known."""
    for name, _, _ in limits:
        if name not in names:
            raise InvalidInput(f"--limit must name one of {', '.join(names)}, got {name!r}")
    return list(limits)


def player(kind: str, data: Any, label: str) -> Markup:
    """What the page's script draws: `kind` is "tubes" or "robots", `data` plain JSON."""
    from jinja2.utils import htmlsafe_json_dumps

    text = htmlsafe_json_dumps(data, separators=(",", ":"))
    made = '<div class="player" data-kind="{}" role="group" aria-label="{}">'
    made += '<script type="application/json">{}</script></div>'
    return Markup(made).format(kind, label, text)


def shorten(values: Any) -> Any:
    """Numbers as JSON, to five digits; what is not finite is null."""
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [shorten(row) for row in array]
    return float(f"{array:.5g}") if np.isfinite(array) else None


def outward(values: Any, side: int) -> Any:
    """The same for an end of a set, rounded away from it: `side` is 1 for an upper end, -1 for a lower."""
    array = np.asarray(values, np.float64)
    if array.ndim:
        return [outward(row, side) for row in array]
    if not np.isfinite(array):
        return None
    near = float(f"{array:.5g}")
    step = 10.0 ** (np.floor(np.log10(abs(array))) - 4) if array else 0.0
    return near if (near - array) * side >= 0 else float(f"{near + side * step:.5g}")


def sweep_sections(run: StoredRun) -> list[Section]:
    """Heat maps of a sweep: size and error at each epsilon and delta, and the table of its rows."""
    if not run.sweep:
        return []
    maps = []
    for horizon in dict.fromkeys(row.get("horizon", "") for row in run.sweep):
        rows = [row for row in run.sweep if row.get("horizon", "") == horizon]
        epsilons = sorted({row["epsilon"] for row in rows}, key=float)
        deltas = sorted({row["delta"] for row in rows}, key=float)
        at = {(row["epsilon"], row["delta"]): row for row in rows}
        for column, words in (("size", "mean size on the test part"), ("test error", "measured error")):
            cells = [[_number(at.get((e, d), {}).get(column)) for e in epsilons] for d in deltas]
            title = words[0].upper() + words[1:] + (f", {horizon} steps" if horizon else "")
            maps.append(heat_map(title, [f"δ = {d}" for d in deltas], [f"ε = {e}" for e in epsilons], cells))
    known = [name for name in run.sweep[0] if any(row[name] for row in run.sweep)]
    hidden = ("file", "tune size")
    shown = [{name: _cell(name, row[name]) for name in known if name not in hidden} for row in run.sweep]
    lead = paragraph(
        "What was chosen on tune units for each level, proved in one look, measured on test units."
    )
    return [Section("Sweep of ε and δ", Markup("").join([lead, *maps, folded("All rows", table(shown))]))]


def _cell(name: str, text: str) -> Any:
    value = _number(text)
    if name == "T" and isinstance(value, float):
        return round_up(value, 4)  # as everywhere, outward
    return text.replace("..", " to ") if value is None or isinstance(value, str) else value


def _number(text: str | None) -> Any:
    try:
        return float(text) if text else None
    except ValueError:
        return text
