"""Certificates from anybody's log of episodes: in the order in which they began, while more come in."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats
from pac_core.bounds import PACLevel
from pac_core.certificates.certificate import json_digest
from pac_core.certificates.descent import Descended, Descent, descend
from pac_core.certificates.ledger import (
    add_note,
    ledger_exists,
    open_ledger,
    open_split,
    read_family,
    read_notes,
)
from pac_core.errors import InvalidInput, SecondLook, UnreadableFile
from pac_core.splits import unique_names
from pac_core.thresholds import group_names

NOTE = "log"
"""The kind of the ledger's notes that hold how much of a log was read, and its digest."""
GROUPS = "log groups"
"""The kind of those that hold which groups of a log share delta."""
IDS = ("id", "episode", "episode_id", "episode_ix", "episode_index")
LOST = "lost"
"""The outcome of an episode that began and has no other: an error, or a loss of 1."""
_WORDS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}


@dataclass(frozen=True, eq=False)
class EpisodeLog:
    """The episodes of a log, of which those up to the first that has no outcome yet count (`len`).

    ids: `[N]` of all that began, in the order in which they did
    losses: of each column that was asked for, `[N]`: 1 for an error, NaN for what is not there yet
    groups: `[N]` the group of each, if a column was asked for
    cut: whether a last line without its end was left out
    """

    ids: NDArray[np.str_]
    losses: Mapping[str, Floats]
    groups: NDArray[np.str_] | None = None
    cut: bool = False

    def __len__(self) -> int:
        waiting = np.isnan(np.sum([*self.losses.values()], axis=0))
        return int(np.argmax(waiting)) if waiting.any() else len(self.ids)

    @property
    def waiting(self) -> int:
        """Episodes from the first one on that is not finished."""
        return len(self.ids) - len(self)

    def of_group(self, group: str) -> EpisodeLog:
        """The episodes of a group, in the same order."""
        mine = self.groups == group
        return EpisodeLog(self.ids[mine], {name: losses[mine] for name, losses in self.losses.items()})

    def record(self, n: int) -> dict[str, Any]:
        """Of the first n episodes, for the ledger: the places where outcomes begin and end to be missing, and
        the digest."""
        gaps: dict[str, list[int]] = {}
        for name, losses in self.losses.items():
            edges = np.flatnonzero(np.diff(np.isnan(losses[:n]), prepend=False, append=False))
            gaps |= {name: edges.tolist()} if len(edges) else {}
        return {"n": n, "digest": self._digest(n, gaps)} | ({"waiting": gaps} if gaps else {})

    def follows(self, record: Mapping[str, Any]) -> bool:
        """Whether it is the recorded log, with more episodes, or outcomes where there were none."""
        n, digest = record["n"], record["digest"]
        return n <= len(self.ids) and self._digest(n, record.get("waiting", {})) == str(digest)

    def _digest(self, n: int, gaps: Mapping[str, Sequence[int]]) -> str:
        losses = {}
        for name, some in self.losses.items():
            unknown = np.searchsorted(gaps.get(name, ()), np.arange(n), side="right") % 2 == 1
            losses[name] = np.where(unknown, np.nan, some[:n]).tolist()
        return json_digest({"ids": self.ids[:n].tolist(), "losses": losses})


def read_log(
    path: str | os.PathLike[str],
    *,
    error: str | None = None,
    success: str | None = None,
    losses: Sequence[str] = (),
    ids: str | None = None,
    group: str | None = None,
    task: str | None = None,
) -> EpisodeLog:
    """The episodes of a CSV file, of JSON lines, or of LeRobot's `eval_info.json`.

    error, success: the column that says whether an episode was an error, or a success; by default `error` or
        `success`, whichever there is
    losses: instead, columns of losses in [0, 1]
    ids, group: the columns with the id (by default one of `IDS`) and the group of each episode
    task: of a LeRobot file with several, as GROUP/ID: they come one after the other, which is no draw from
        their mixture

    An empty outcome, or null, is of an episode that is not finished: only those before it count. One that
    never will be has the outcome "lost", which is an error. A last line without its end is still being
    written, and left out (`EpisodeLog.cut`).
    """
    if sum((error is not None, success is not None, bool(losses))) > 1:
        raise InvalidInput("one of error, success and losses must say what counts, got several")
    rows, cut = _read_rows(Path(path), task)
    known = [name for name in rows[0] if name is not None] if rows else []

    def column(what: str, wanted: str | None, usual: Sequence[str]) -> str:
        found = next((name for name in (usual if wanted is None else (wanted,)) if name in known), None)
        if found is None:
            names = repr(wanted) if wanted is not None else " or ".join(usual)
            raise InvalidInput(f"{what} must be a column of {path}, got {names}; it has {', '.join(known)}")
        return found

    if not rows:
        raise UnreadableFile(f"{path} holds no finished line of an episode")
    outcome = () if losses else (column("error", error or success, ("error", "success")),)
    good = success is not None or (error is None and outcome == ("success",))
    wanted = tuple(column("loss", name, ()) for name in losses) or outcome
    named, grouped = column("id", ids, IDS), group and column("group", group, ())
    names = unique_names("ids", [str(row[named]) for row in rows])

    def read(row: Mapping[str, Any], name: str) -> float:
        return _loss(row[name], bool(losses), good, f"{name} of episode {row[named]}")

    values = {name: np.array([read(row, name) for row in rows]) for name in wanted}
    groups = group_names([str(row[grouped]) for row in rows]) if grouped else None
    return EpisodeLog(names, values, groups, cut)


def _loss(value: Any, share: bool, good: bool, what: str) -> float:
    text = "" if value is None else str(value).strip().lower()
    if not text:
        return math.nan
    if text == LOST:
        return 1.0
    if not share and text in _WORDS:
        return 1 - _WORDS[text] if good else _WORDS[text]
    try:
        loss = float(text)
    except ValueError:
        loss = math.nan
    if not share or not 0 <= loss <= 1:
        rule = "a number in [0, 1]" if share else "true or false, 1 or 0"
        raise InvalidInput(f"{what} must be {rule}, or {LOST}, got {value!r}")
    return loss


def _read_rows(path: Path, task: str | None) -> tuple[list[dict[str, Any]], bool]:
    """The rows, and whether a last line without its end was left out."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            return _from_lerobot(json.loads(text), task), False
        if task is not None:
            raise InvalidInput(f"task is for LeRobot's eval_info.json, got {task!r} for {path}")
        whole = text.rfind("\n") + 1
        lines = text[:whole].splitlines()
        if path.suffix.lower() in (".jsonl", ".ndjson"):
            rows = [json.loads(line) for line in lines if line.strip()]
        elif path.suffix.lower() == ".csv":
            rows = list(csv.DictReader(lines, strict=True))
        else:
            raise InvalidInput(f"LOG must be a .csv, .jsonl or LeRobot's .json, got {path}")
    except InvalidInput:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error, RecursionError) as found:
        raise UnreadableFile(f"{path} cannot be read as a log of episodes: {found!r}") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row.keys() != rows[0].keys() or None in row or None in row.values():
            if isinstance(row, dict) and path.suffix.lower() != ".csv" and row.keys() == rows[0].keys():
                continue  # null is an outcome that is not there yet
            raise UnreadableFile(f"{path}: episode {number} must have the columns of the first one")
    return rows, bool(text[whole:].strip())


def _from_lerobot(document: Any, task: str | None) -> list[dict[str, Any]]:
    """`per_episode` of one task, or `per_task` of several."""
    if isinstance(document, dict) and isinstance(document.get("per_episode"), list):
        return [{"id": f"{row['episode_ix']}", **row} for row in document["per_episode"]]
    if not isinstance(document, dict) or not isinstance(document.get("per_task"), list):
        raise InvalidInput("a .json log must be LeRobot's eval_info.json, with per_episode or per_task")
    tasks = {f"{one['task_group']}/{one['task_id']}": one["metrics"] for one in document["per_task"]}
    if task is None and len(tasks) > 1:
        raise InvalidInput(
            "task must name one of the file's tasks, because they come one after the other, which is no draw "
            f"from their mixture: {', '.join(tasks)}"
        )
    if task is not None and task not in tasks:
        raise InvalidInput(f"task must be one of {', '.join(tasks)}, got {task!r}")
    chosen = next(iter(tasks)) if task is None else task
    return [{"id": f"{chosen}/{i}", "success": good} for i, good in enumerate(tasks[chosen]["successes"])]


def certify_log(
    log: EpisodeLog,
    level: PACLevel,
    *,
    ledger: str | os.PathLike[str],
    name: str,
    error: str = "as the log says",
    loss: bool = False,
    most: int = 10_000,
    early: bool = True,
) -> Descended:
    """What the episodes of a log prove so far; call it again when there are more.

    ledger: holds the plan, before an episode is counted, and the digest of all that the log held, episodes
        that still ran included: a log in which one of these was edited, moved or removed is refused
    name: of what is evaluated; another evaluation needs another one
    error: in words, what counts
    loss: whether the columns are losses, from the safest setting to the boldest, instead of errors
    most, early: see `Descent`

    It cannot see episodes that never reached the log, a log begun anew under another name or with another
    ledger, or an order that is not that of the beginnings.
    """
    settings = tuple(log.losses) if len(log.losses) > 1 else (name,)
    plan = Descent(
        scales=settings,
        n=most,
        level=level,
        episodes=np.array([f"{name}/{place}" for place in range(most)]),
        error=error,
        tested={"name": name, "columns": list(log.losses)},
        early=early,
        loss=loss,
    )
    try:
        look = open_split(ledger, plan.look)
    except SecondLook:
        raise SecondLook(
            f"{name!r} was begun with another plan ({ledger}): to go on, give the same epsilon, delta, "
            "columns and largest number; another evaluation needs fresh episodes and another name"
        ) from None
    notes = [note.facts for note in read_notes(ledger) if note.kind == NOTE]
    for facts in (mine := [facts for facts in notes if facts["plan"] == look.data]):
        if not log.follows(facts):
            raise InvalidInput(
                f"the first {facts['n']:,} episodes must be those that were read before: one was edited, "
                "moved or removed, or the outcome of one that still ran is not where it was; put them back, "
                f"or give another evaluation another name than {name!r}"
            )
    if (record := {"plan": look.data} | log.record(min(len(log.ids), most))) not in mine:
        add_note(ledger, NOTE, record)
    columns = dict(zip(settings, log.losses.values(), strict=True))

    def run(setting: str, ids: NDArray[Any]) -> NDArray[Any]:
        places = [int(one.rpartition("/")[2]) for one in ids.tolist()]
        found = columns[setting][places]
        return found if loss else found == 1

    return descend(plan, run, ledger=ledger, available=min(len(log), most), repeatable=True)


def certify_groups(
    log: EpisodeLog,
    level: PACLevel,
    *,
    ledger: str | os.PathLike[str],
    name: str,
    groups: Sequence[str] = (),
    **options: Any,
) -> dict[str, Descended]:
    """The same for each group of a log: they share delta equally, so that all statements hold together.

    groups: their names, all that will ever come, fixed at the first look; by default those in the log
    ledger: one with a budget; a new one gets delta as its budget
    options: of `certify_log`
    """
    if log.groups is None:
        raise InvalidInput("log must be read with group=, the column of the groups, got one without")
    if not ledger_exists(ledger):
        open_ledger(ledger, budget=level.delta)
    if read_family(ledger).budget is None:
        rule = "ledger must have a budget, which all groups share"
        raise InvalidInput(f"{rule}, got {ledger}, which has begun without one: give a new one")
    asked = {*group_names([*groups]).tolist()} if groups else {*log.groups.tolist()}
    notes = (note.facts for note in read_notes(ledger) if note.kind == GROUPS)
    known = [facts["groups"] for facts in notes if facts["name"] == name]
    shared = known[0] if known else sorted(asked)
    if new := sorted({*asked, *log.groups.tolist()} - {*shared}):
        raise InvalidInput(
            f"groups must be those of the first look, {', '.join(shared)}, which share delta, got "
            f"{', '.join(new)}: name all groups to come at the first look; with others it is another "
            "evaluation, on fresh episodes and under another name"
        )
    if not known:
        add_note(ledger, GROUPS, {"name": name, "groups": shared})
    own = PACLevel(level.epsilon, level.delta / len(shared))
    return {
        group: certify_log(log.of_group(group), own, ledger=ledger, name=f"{name}/{group}", **options)
        for group in shared
    }
