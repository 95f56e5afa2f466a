"""The driver: a task becomes a job, the job a finished run, the run certificates."""

from __future__ import annotations

import csv
import fnmatch
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.bounds import PACLevel, max_errors
from pac_core.certificates.certificate import (
    Certificate,
    Record,
    SplitRecord,
    as_document,
    format_json,
    read_certificate,
)
from pac_core.certificates.certify import Certified, Request, certify_several
from pac_core.certificates.ledger import (
    LedgerPath,
    ledger_exists,
    ledger_name,
    read_ledger,
    refuse_spent,
    score_digest,
)
from pac_core.errors import BadCertificate, InvalidInput, UnreadableFile
from pac_core.evaluation import Evaluation, Outcomes, evaluate_outcomes, measure_sets
from pac_core.fitting import score_fitter
from pac_core.runs.folders import LEDGER, RunFolder
from pac_core.runs.jobs import Arrays, Ids, Job, Stage, cut, digest_shards, pack, unpack
from pac_core.runs.reading import ALL, Results, View
from pac_core.sets.predictor import GivenScore, Likelihood, Score
from pac_core.splits import ids_digest, split
from pac_core.thresholds import fit_threshold

Replaced: TypeAlias = Callable[[Arrays], str | None]


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be found out, in the words of its field.

    names: `[N]` of the units, for ledger and certificate, in the order of the job's ids
    unit: what is drawn independently, in a word
    model, train: for the certificate; train, what the model was trained on, None if it is not named
    score: of a run that stores scores, in words; None if it stores forecasts
    tune, calibrate, seed: of the split; the rest tests
    replaced: from the arrays of a stored shard to the first unit whose file is another by now, or None
    """

    job: Job
    names: NDArray[np.str_]
    unit: str
    model: Record
    score: str | None
    tune: int
    calibrate: int
    seed: int
    replaced: Replaced | None = None
    train: Record | None = None

    @classmethod
    def of(
        cls,
        name: str,
        ids: Ids,
        stages: Sequence[Stage],
        *,
        size: int,
        names: Any,
        unit: str,
        model: Record,
        score: str | None = None,
        tune: int,
        calibrate: int,
        seed: int,
        replaced: Replaced | None = None,
        train: Record | None = None,
        **configuration: Any,
    ) -> Task:
        """A task whose run folder holds everything that is needed to read it again."""
        names = np.asarray(names)
        about: dict[str, Any] = {"names": ids_digest(names), "unit": unit, "model": asdict(model)}
        about |= {"score": score, "tune": tune, "calibrate": calibrate}
        if train is not None:
            about["train"] = asdict(train)
        if tune < 0 or calibrate < 1 or tune + calibrate > len(ids):
            raise InvalidInput(
                f"tune and calibrate must be at least 0 and 1, and together at most the {len(ids):,} "
                f"{unit}s, got {tune:,} and {calibrate:,}"
            )
        job = Job.of(name, ids, stages, size=size, seed=seed, **about, **configuration)
        return cls(job, names, unit, model, score, tune, calibrate, seed, replaced, train)

    def write(self, folder: RunFolder) -> None:
        """Writes down what the folder is for, and which units there are.

        Refuses a folder whose finished shards are of files that were replaced since.
        """
        folder.claim(self.job)
        if self.replaced is not None:
            finished = folder.receipts(self.job)
            shards = [shard for shard in self.job.shards if shard.number in finished]
            for _, unit in folder.over(shards, lambda _, arrays: self.replaced and self.replaced(arrays)):
                if unit is not None:
                    raise InvalidInput(
                        f"{folder} holds results of another {unit} than there is now: the files of finished "
                        f"{self.unit}s must stay as they are; put it back, or choose another folder"
                    )
        ids = np.concatenate([shard.array for shard in self.job.shards])
        folder.put("units.arrow", pack({"ids": ids, "names": self.names}))

    @classmethod
    def read(cls, folder: RunFolder) -> Task:
        """The task of a folder, to read its results; it cannot be run."""
        about, needed = folder.configuration() or {}, {"unit", "model", "score", "tune", "calibrate"}
        if not needed | {"size", "names"} <= set(about):
            raise InvalidInput(f"{folder} must be the folder of a finished `pac run`, and is none")
        units = unpack(folder.get("units.arrow"))
        ids: Any = units["ids"].tolist()
        if isinstance(ids[0], int) and ids == list(whole := range(ids[0], ids[0] + len(ids))):
            ids = whole  # as they were handed over
        shards = cut(ids, about["size"], seed=about["seed"])
        job = Job(about["task"], tuple(shards), ())
        if (ids_digest(units["names"]), digest_shards(job.shards)) != (about["names"], about["ids"]):
            raise UnreadableFile(f"{folder}/units.arrow is not the one of this run: start the run again")
        parts = {name: about[name] for name in ("unit", "score", "tune", "calibrate", "seed")}
        train = Record(**about["train"]) if "train" in about else None
        return cls(job, units["names"], model=Record(**about["model"]), train=train, **parts)

    def check(self, levels: Sequence[PACLevel]) -> None:
        """Refuse, before any work, what so many units cannot prove."""
        for level in levels:
            max_errors(self.calibrate, level)

    def results(self, folder: RunFolder) -> Results:
        """The finished run in a folder."""
        parts = split(self.names, tune=self.tune, calibrate=self.calibrate, seed=self.seed)
        return Results(self.job, folder, self.names, parts)


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
    shape: str | None = None,
    features: Sequence[str] = (),
    results: Results | None = None,
) -> tuple[Certified, list[Finding]]:
    """Certificates of a finished run at these levels, written into its folder, and their test.

    results: of this run, if something was read of it already; each part is read once
    """
    refuse_second_look(task, folder, levels, ledger, [certificate_file(level) for level in levels])
    results = results or task.results(folder)
    score, domain = _fit_score(task, results, shape, levels, features)
    asked = Request(score, tuple(levels), partial(results.scores, score, "scores.parquet"), domain)
    (made,) = certify_results(task, results, [asked], ledger)
    if not made.certificates:
        fit_threshold(made.scores, made.refused[-1])  # raises the reason, with its numbers
    return made, evaluate_certificates(results, [(one, ALL, "") for one in made.certificates])


def refuse_second_look(
    task: Task,
    folder: RunFolder,
    levels: Sequence[PACLevel],
    ledger: LedgerPath,
    files: Sequence[str],
    plan: Mapping[str, Any] | None = None,
) -> None:
    """Refuse before any work what would be a second look, or in another ledger than the first.

    files: of the certificates to come; none that is there is replaced, unless the same look is repeated
    """
    folder.ledger(ledger)
    issued = _read_certificates(folder)
    if not issued and not ledger_exists(ledger):
        return
    looks = read_ledger(ledger) if ledger_exists(ledger) else []
    known = {look.calibrate for look in looks if not look.claim}
    strange = [name for name, one in issued.items() if one.parts["calibrate"].digest not in known]
    ids = task.results(folder).units("calibrate")
    if not strange and not refuse_spent(ledger, ids, levels, plan):
        strange = [file for file in files if file in issued]
    if strange:
        raise InvalidInput(
            f"{folder}/{strange[0]} was issued from a look that {ledger} does not know of: no certificate is "
            "replaced or added; give the ledger of that look, or choose another folder"
        )


def certify_results(
    task: Task,
    results: Results,
    menu: Sequence[Request],
    ledger: LedgerPath,
    plan: Mapping[str, Any] | None = None,
) -> list[Certified]:
    """One look at the calibrate part, for everything on the menu; the folder remembers its ledger."""
    results.folder.ledger(ledger)

    def name_ledger(asked: Request) -> Request:
        def scores() -> Any:  # called when the ledger is written, before the calibrate part is read
            results.folder.put_text(LEDGER, ledger_name(ledger))
            return asked.scores()

        return replace(asked, scores=scores)

    tune, test, digest = results.parts.tune, results.parts.test, results.digest()
    return certify_several(
        [name_ledger(asked) for asked in menu],
        ids=results.units("calibrate"),
        ledger=ledger,
        data=digest,
        parts=results.parts,
        source=Record(f"run of the task {task.job.name}", task.job.units, digest),
        unit=task.unit,
        tune=Record("tune", tune.n, tune.digest),
        test=Record("test", test.n, test.digest),
        model=task.model,
        train=task.train,
        split=SplitRecord(task.seed, ids_digest(results.names), "ids"),
        plan=plan,
    )


def evaluate_certificates(results: Results, issued: Sequence[tuple[Certificate, View, str]]) -> list[Finding]:
    """Writes certificates, each with its view and the prefix of its file, and tests all on the test part."""
    files = [certificate_file(one.predictor.threshold.level, prefix) for one, _, prefix in issued]
    for file, (certificate, _, _) in zip(files, issued, strict=True):
        _write_once(results.folder, file, certificate)

    def measure(read: Callable[[View], Any]) -> list[Outcomes | int]:
        """What the sets of some test units are like; of given scores, how many lie above T."""
        found: list[Outcomes | int] = []
        for certificate, view, _ in issued:
            predictor, (scores, forecast, truth) = certificate.predictor, read(view)
            given = isinstance(predictor.score, GivenScore)
            above = int((scores > predictor.threshold.value).sum()) if given else 0
            found.append(above if given else measure_sets(predictor.sets(forecast), truth))
        return found

    shards = [outcomes for _, _, outcomes in results.each("test", measure)] if issued else []
    findings = []
    for i, (file, (certificate, _, _)) in enumerate(zip(files, issued, strict=True)):
        outcomes: list[Any] = [shard[i] for shard in shards]
        if not outcomes:
            findings.append(Finding(certificate, file, None))
        elif isinstance(certificate.predictor.score, GivenScore):
            findings.append(Finding(certificate, file, None, (sum(outcomes), results.parts.test.n)))
        else:
            evaluation = evaluate_outcomes(outcomes, certificate.predictor.threshold.level)
            errors = evaluation.all.errors, evaluation.all.n
            findings.append(Finding(certificate, file, evaluation, errors))
    return findings


def certificate_file(level: PACLevel, prefix: str = "") -> str:
    """What the certificate of a level is called in the run folder."""
    return f"{prefix}certificate-{level.epsilon!r}-{level.delta!r}.json"


def _write_once(folder: RunFolder, name: str, certificate: Certificate) -> None:
    """Writes a certificate; one that is there stays, and must be the same."""
    if not folder.has(name):
        return folder.put(name, format_json(as_document(certificate)))
    both = (read_certificate(f"{folder}/{name}", folder.get(name)), certificate)
    if len({(c.scores, c.predictor.threshold, score_digest(c.predictor.score)) for c in both}) > 1:
        raise BadCertificate(f"{folder}/{name} is another certificate than this look gives: none is replaced")


def _read_certificates(folder: RunFolder) -> dict[str, Certificate]:
    """The certificates in a run folder, by the names of their files."""
    paths = folder.fs.ls(folder.root, detail=False, refresh=True) if folder.fs.exists(folder.root) else []
    names = fnmatch.filter(
        sorted(path.rstrip("/").rpartition("/")[2] for path in paths), "*certificate-*.json"
    )
    return {name: read_certificate(f"{folder}/{name}", folder.get(name)) for name in names}


def _fit_score(
    task: Task, results: Results, shape: str | None, levels: Sequence[PACLevel], features: Sequence[str]
) -> tuple[Score, Any]:
    """A score fitted on the tune part for these levels, and its domain; see `score_fitter`."""
    domain = results.domain()
    if task.score is not None or domain is None:
        return GivenScore(task.score or "not named"), None
    fit = score_fitter(domain, shape, calibrate=task.calibrate, others=levels[1:], features=features)
    if shape in ("joint", "plain"):
        return results.fit_paper_score() if shape == "joint" else Likelihood(), domain
    return fit(*results.gathered("tune"), levels[0]), domain


def format_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    """Rows as csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
