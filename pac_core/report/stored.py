"""A finished run as the page reads it, and what a task's page is made of."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from markupsafe import Markup

from pac_core.certificates.certificate import Certificate
from pac_core.errors import InvalidInput
from pac_core.evaluation import Evaluation, Outcomes, evaluate_outcomes, measure_sets
from pac_core.runs.driver import read_certificates
from pac_core.runs.folders import RunFolder
from pac_core.runs.jobs import Arrays
from pac_core.runs.reading import ALL, Task, read_groups
from pac_core.sets.kinds import ConfidenceSets, LabelSets

DESCENT = "descent.json"
"""Of the run folder of guarded episodes: the certificate of the controller, see `pac_core.descend`."""


@dataclass(frozen=True)
class Headline:
    """What the top of the page says: a promise, what was measured, whether it held (None: not measured) with
    that in words, about whom it speaks, and what voids it."""

    promise: str
    measured: str
    held: bool | None
    verdict: str
    about: str
    voids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page below the headlines: HTML made by `pac_core.report`'s functions, or escaped."""

    title: str
    body: Markup


@dataclass(frozen=True)
class Chapter:
    """What the page shows of the runs of one task."""

    title: str
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A finished run of any task, to be shown: its folder, description, certificates and tests.

    limits: that the reader asked to see: name of a number, bound, and whether it is an upper one
    classes: the names of labels, in their order, where they are known
    """

    folder: RunFolder
    limits: tuple[tuple[str, float, bool], ...] = ()
    classes: tuple[str, ...] = ()
    _sizes: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the folder is for, as run.json says."""
        found = self.folder.configuration()
        if found is None:
            raise InvalidInput(f"RUN must be a run folder, with a run.json, got {self.folder}")
        return found

    @property
    def name(self) -> str:
        """Of its task."""
        return str(self.about.get("task", "run"))

    @property
    def unit(self) -> str:
        return str(self.about.get("unit", "unit"))

    @cached_property
    def task(self) -> Task | None:
        """With its parts, where the run has some."""
        return Task.read(self.folder) if "calibrate" in self.about else None

    @cached_property
    def results(self) -> Any:
        assert self.task is not None
        return self.task.results(self.folder)

    @cached_property
    def arrays(self) -> Arrays:
        """All arrays of a run without parts, with a row for each unit; of a descent, until it stopped."""
        return self.folder.read_all(early=self.folder.has(DESCENT))

    @property
    def shows_tubes(self) -> bool:
        """Whether it has certified tubes of trajectories."""
        domains = [one.predictor.domain for one in self.certificates.values()]
        return any(domain and domain[0] == "trajectories" for domain in domains)

    @cached_property
    def certificates(self) -> dict[str, Certificate]:
        """Those to be shown, by the names of their files: of a sweep the strictest of the run's forecasts."""
        found, swept = read_certificates(self.folder), {row["file"]: row for row in self.sweep}
        own = {name: one for name, one in found.items() if name not in swept}
        whole = [
            name for name, row in swept.items() if name in found and not (row["horizon"] or row["members"])
        ]
        strictest = sorted(whole, key=lambda name: astuple(found[name].predictor.threshold.level))[:1]
        return own | {name: found[name] for name in strictest}

    @property
    def main(self) -> tuple[Certificate, Any] | None:
        """The first of them with its test."""
        return next(((one, self.tests[name]) for name, one in self.certificates.items()), None)

    @cached_property
    def sweep(self) -> list[dict[str, str]]:
        """The rows of `pac tune`, if it was run."""
        if not self.folder.has("tune.csv"):
            return []
        return list(csv.DictReader(io.StringIO(self.folder.get("tune.csv").decode())))

    @cached_property
    def tests(self) -> dict[str, Evaluation | tuple[int, int] | None]:
        """For each certificate, what the test part says; of bare scores how many of how many are above T."""
        if self.task is None or not self.certificates or not self.results.parts.test.n:
            return dict.fromkeys(self.certificates)
        chosen = list(self.certificates.values())

        def measure(read: Callable[..., Any]) -> list[Any]:
            scores, forecast, truth = read(ALL)
            groups = [read_groups(one.predictor.threshold, read) for one in chosen]
            found: list[Any] = []
            for one, own in zip(chosen, groups, strict=True):
                if scores is not None:
                    found.append((int((scores > one.predictor.threshold.at(own)).sum()), len(scores)))
                    continue
                sets, names = one.predictor.sets(forecast, own), one.predictor.threshold.names_of(own, truth)
                steps = sets.step_size() if isinstance(sets, ConfidenceSets) else None
                labels = np.bincount(np.asarray(sets.size(), int)) if isinstance(sets, LabelSets) else None
                found.append((measure_sets(sets, truth, names), steps, labels))
            return found

        shards = [found for _, _, found in self.results.each("test", measure)]
        tested: dict[str, Evaluation | tuple[int, int] | None] = {}
        for i, (name, one) in enumerate(self.certificates.items()):
            pieces = [shard[i] for shard in shards]
            if isinstance(pieces[0][0], int):
                tested[name] = sum(p[0] for p in pieces), sum(p[1] for p in pieces)
                continue
            outcomes: list[Outcomes] = [piece[0] for piece in pieces]
            tested[name] = evaluate_outcomes(outcomes, one.predictor.threshold)
            self._sizes[name] = [piece[1:] for piece in pieces]
        return tested

    def step_sizes(self, name: str) -> np.ndarray[Any, Any] | None:
        """`[n, H]` the size of each test tube at each step, of a certificate's tubes."""
        pieces = [steps for steps, _ in self._sizes.get(name, ()) if steps is not None and steps.ndim == 2]
        return np.concatenate(pieces) if pieces else None

    def label_counts(self, name: str) -> np.ndarray[Any, Any] | None:
        """`[K + 1]` how many test sets have so many labels."""
        pieces = [labels for _, labels in self._sizes.get(name, ()) if labels is not None]
        if not pieces:
            return None
        most = max(map(len, pieces))
        return np.asarray(sum(np.pad(piece, (0, most - len(piece))) for piece in pieces))
