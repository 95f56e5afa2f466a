"""The driver: from a finished run to certificates, in one look, and their test."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from pac_core.bounds import PACLevel
from pac_core.certificates.certificate import (
    Certificate,
    Record,
    SplitRecord,
    as_document,
    format_json,
    read_certificate,
)
from pac_core.certificates.certify import Certified, Request, certify_several, plan_groups
from pac_core.certificates.ledger import (
    LedgerPath,
    ledger_exists,
    ledger_name,
    read_ledger,
    refuse_spent,
    score_digest,
)
from pac_core.errors import BadCertificate, InvalidInput
from pac_core.evaluation import Evaluation, Outcomes, evaluate_outcomes, measure_sets
from pac_core.fitting import score_fitter
from pac_core.runs.folders import LEDGER, RunFolder
from pac_core.runs.jobs import digest_run
from pac_core.runs.reading import ALL, Results, Task, View, read_groups
from pac_core.sets.predictor import GivenScore, Likelihood, Score
from pac_core.splits import ids_digest
from pac_core.thresholds import Groups, fit_threshold

Place: TypeAlias = tuple[str, PACLevel]
"""Of a certificate in a run folder: the prefix of its file, and its level."""


@dataclass(frozen=True, eq=False)
class Held:
    """A score that was fitted on tune units of a run of their own, and is an argument of the run to certify:
    its units return their scores alone, and none is run before the ledger is written.

    domain: of the forecasts it scores
    tune: the units it was fitted on
    run: does the run to certify
    """

    score: Score
    domain: tuple[Any, ...]
    tune: Record
    run: Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Finding:
    """A certificate, its file, and what the test part says: the evaluation of its sets, None without units
    or forecasts, and of how many units the score lies above T."""

    certificate: Certificate
    file: str
    evaluation: Evaluation | None
    errors: tuple[int, int] | None = None


def certify_run(
    task: Task,
    folder: RunFolder,
    levels: Sequence[PACLevel],
    ledger: LedgerPath,
    *,
    score: str | None = None,
    features: Sequence[str] = (),
    groups: str | Groups | None = None,
    results: Results | None = None,
    held: Held | None = None,
) -> tuple[Certified, list[Finding]]:
    """Certificates of a finished run at these levels, written into its folder, and their test.

    score: by name, for trajectories the tube shape; see `score_fitter`
    groups: a threshold for each, see `Groups`: the name of the stored array with the group of each unit;
        groups of labels; or "label", each label its own
    results: of this run, if something was read of it already; each part is read once
    held: of a run that is still to be done, because its last stage holds the fitted score
    """
    results = results or task.results(folder)
    known = None if groups is None else _read_groups(results, groups)
    plan = None if known is None else {"groups": plan_groups(known, results.units("calibrate"))}
    refuse_second_look(results, levels, ledger, plan)
    fitted = _fit_score(results, score, levels, features) if held is None else held.score
    chosen = {("", level): (fitted, ALL) for level in levels}
    (made,), findings = certify_choices(results, chosen, ledger, groups=known, held=held)
    if not made.certificates:
        fit_threshold(made.scores, made.refused[-1], groups=known)  # raises the reason, with its numbers
    return made, list(findings.values())


def _read_groups(results: Results, groups: str | Groups) -> Groups | None:
    """The groups of the calibrate part, without its forecasts."""
    domain = results.domain() or ("nothing",)
    if groups == "label" and domain[0] == "labels":
        groups = Groups(labels=range(domain[1]), column="label")
    if isinstance(groups, str):
        return Groups(results.column("calibrate", groups), column=groups)
    return Groups.of(groups, results.column("calibrate", "labels"), domain)


def refuse_second_look(
    results: Results,
    levels: Sequence[PACLevel],
    ledger: LedgerPath,
    plan: Mapping[str, Any] | None = None,
    prefixes: Sequence[str] = ("",),
) -> None:
    """Refuse before any work what would be a second look, or in another ledger than the first.

    prefixes: of the certificates to come; none that is there is replaced, unless the same look is repeated
    """
    folder = results.folder
    folder.ledger(ledger)
    issued, begun = read_certificates(folder), ledger_exists(ledger)
    if not issued and not begun:
        return
    known = {look.calibrate for look in (read_ledger(ledger) if begun else []) if not look.claim}
    strange = [name for name, one in issued.items() if one.parts["calibrate"].digest not in known]
    if not strange and not refuse_spent(ledger, results.units("calibrate"), levels, plan):
        files = [certificate_file((prefix, level)) for prefix in prefixes for level in levels]
        strange = [file for file in files if file in issued]
    if strange:
        raise InvalidInput(
            f"{folder}/{strange[0]} was issued from a look that {ledger} does not know of: no certificate is "
            "replaced or added; give the ledger of that look, or choose another folder"
        )


def certify_choices(
    results: Results,
    chosen: Mapping[Place, tuple[Score, View]],
    ledger: LedgerPath,
    plan: Mapping[str, Any] | None = None,
    groups: Groups | None = None,
    held: Held | None = None,
) -> tuple[list[Certified], dict[Place, Finding]]:
    """One look at the calibrate part for all that was chosen; the folder remembers its ledger.

    chosen: for each certificate the score, and the view of the forecasts that it scores
    plan: what led to the choice; the files of the scores then have the digests of their scores in their names
    """
    task, folder = results.task, results.folder
    folder.ledger(ledger)
    menu: dict[tuple[str, View], list[Place]] = {}
    for place, (score, view) in chosen.items():
        menu.setdefault((score_digest(score, str(view)), view), []).append(place)
    wanted = [
        (chosen[places[0]][0], "scores.parquet" if plan is None else f"scores-{digest[:12]}.parquet", view)
        for (digest, view), places in menu.items()
    ]

    @cache
    def write_scores() -> list[Any]:  # called when the ledger is written, before the calibrate part is read
        folder.put_text(LEDGER, ledger_name(ledger))
        if held is not None:
            held.run()
        return results.write_scores(wanted, None if groups is None else groups.names)

    def request(number: int, places: Sequence[Place]) -> Request:
        score, _, view = wanted[number]
        domain = held.domain if held else None if isinstance(score, GivenScore) else results.domain(view)
        levels = tuple(level for _, level in places)
        return Request(score, levels, lambda: write_scores()[number], domain, str(view))

    tune, test = results.parts.tune, results.parts.test
    # What is still to be computed is known by all that decides it.
    digest = results.digest() if held is None else digest_run(task.job.describe())
    made = certify_several(
        [request(*one) for one in enumerate(menu.values())],
        ids=results.units("calibrate"),
        ledger=ledger,
        data=digest,
        parts=results.parts,
        source=Record(f"run of the task {task.job.name}", task.job.units, digest),
        unit=task.unit,
        tune=Record("tune", tune.n, tune.digest) if held is None else held.tune,
        test=Record("test", test.n, test.digest),
        model=task.model,
        train=task.train,
        split=SplitRecord(task.seed, ids_digest(task.names), "ids"),
        plan=plan,
        groups=groups,
    )
    issued = {
        place: certificate
        for certified, places in zip(made, menu.values(), strict=True)
        for certificate in certified.certificates
        for place in places
        if place[1] == certificate.predictor.threshold.level
    }
    for place, certificate in issued.items():
        _write_once(folder, certificate_file(place), certificate)
    return made, _test(results, {place: (one, chosen[place][1]) for place, one in issued.items()})


def _test(results: Results, issued: Mapping[Place, tuple[Certificate, View]]) -> dict[Place, Finding]:
    """What the test part says of certificates, each of the forecasts of its view, in one pass."""

    def measure(read: Callable[[View], Any]) -> list[Outcomes | int]:
        """What the sets of some test units are like; of given scores, how many lie above T."""
        found: list[Outcomes | int] = []
        for certificate, view in issued.values():
            predictor, (scores, forecast, truth) = certificate.predictor, read(view)
            groups = read_groups(predictor.threshold, read)
            if scores is not None:
                found.append(int((scores > predictor.threshold.at(groups)).sum()))
            else:
                names = predictor.threshold.names_of(groups, truth)
                found.append(measure_sets(predictor.sets(forecast, groups), truth, names))
        return found

    shards = [outcomes for _, _, outcomes in results.each("test", measure)] if issued else []
    findings = {}
    for i, (place, (certificate, _)) in enumerate(issued.items()):
        outcomes: list[Any] = [shard[i] for shard in shards]
        evaluation = errors = None
        if outcomes and isinstance(outcomes[0], int):
            errors = (sum(outcomes), results.parts.test.n)
        elif outcomes:
            evaluation = evaluate_outcomes(outcomes, certificate.predictor.threshold)
            errors = evaluation.all.errors, evaluation.all.n
        findings[place] = Finding(certificate, certificate_file(place), evaluation, errors)
    return findings


def certificate_file(place: Place) -> str:
    """What the certificate of a place is called in the run folder."""
    prefix, level = place
    return f"{prefix}certificate-{level.epsilon!r}-{level.delta!r}.json"


def _write_once(folder: RunFolder, name: str, certificate: Certificate) -> None:
    """Writes a certificate; one that is there stays, and must be the same."""
    if not folder.has(name):
        return folder.put(name, format_json(as_document(certificate)))
    both = (read_certificate(f"{folder}/{name}", folder.get(name)), certificate)
    if len({(c.scores, c.predictor.threshold, score_digest(c.predictor.score)) for c in both}) > 1:
        raise BadCertificate(f"{folder}/{name} is another certificate than this look gives: none is replaced")


def read_certificates(folder: RunFolder) -> dict[str, Certificate]:
    """The certificates in a run folder, by the names of their files."""
    paths = folder.fs.ls(folder.root, detail=False, refresh=True) if folder.fs.exists(folder.root) else []
    names = fnmatch.filter(
        sorted(path.rstrip("/").rpartition("/")[2] for path in paths), "*certificate-*.json"
    )
    return {name: read_certificate(f"{folder}/{name}", folder.get(name)) for name in names}


def _fit_score(
    results: Results, name: str | None, levels: Sequence[PACLevel], features: Sequence[str]
) -> Score:
    """A score fitted on the tune part for these levels; see `score_fitter`."""
    task, domain = results.task, results.domain()
    if task.score is not None or domain is None:
        return GivenScore(task.score or "not named")
    fit = score_fitter(domain, name, calibrate=task.calibrate, others=levels[1:], features=features)
    return Likelihood() if name == "plain" else fit(*results.gathered("tune"), levels[0])
