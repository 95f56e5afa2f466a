"""The folder of a run: finished shards as Arrow files, complete or absent, each named by its checksum.

A folder is a local path or any URL that fsspec understands. A shard's file is
``shards/000012-512-<SHA-256>.arrow``: number, units and content, so nothing else has to be kept in
step with it. Credentials come from the environment; a URL that holds some is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from pac_core.certificates.ledger import LedgerPath, ledger_exists, ledger_name
from pac_core.errors import Incomplete, InvalidInput, UnreadableFile
from pac_core.files import OBJECT_STORES, open_storage, sweep_parts, whole_file
from pac_core.runs.jobs import Arrays, Job, Receipt, Shard, digest_run, read_label, unpack

Item = TypeVar("Item")
Result = TypeVar("Result")
READERS = 4
"""Shards that are read at the same time, each in a thread: so many are in memory."""
LEDGER = "ledger.txt"
"""Of a run folder: the path of the ledger that it was certified with."""
_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]{64})\.arrow")
_DIGEST = re.compile(r" ?\b[0-9a-f]{32,64}$")
_ALONE = ("ftp", "sftp", "ssh", "smb")  # whose connections are not made for several threads


class RunFolder:
    """Where a run keeps its shards; reading and writing are the same for every place."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        self.fs, self.root, protocols = open_storage(self.url, "the run folder")
        self.local = not protocols.isdisjoint(("file", "local"))
        self.alone = not protocols.isdisjoint(_ALONE)
        """whether one file is to be read or written at a time"""
        self._objects = not protocols.isdisjoint(OBJECT_STORES)

    def __str__(self) -> str:
        return self.url

    def claim(self, job: Job, device: str | None = None) -> str:
        """Writes down what the folder is for, and returns its digest; refuses one with shards of another job.

        device: what scores, where that is known; digits differ between kinds of devices
        """
        ours = json.loads(json.dumps(job.describe()))
        run, listed = digest_run(ours), self._list()
        theirs = (self.configuration() or {}) if listed else {}
        sound = filter(None, map(self._verify, listed if not theirs else []))
        differing = []
        if theirs:
            wanted = ours | {"device": device if device and theirs.get("device") else theirs.get("device")}
            differing = _differences(theirs, wanted)
        elif listed and not any(read_label(content) == run for content in sound):
            differing = [f"{len(listed):,} shards, none of this one, and no run.json"]
        if differing:
            raise InvalidInput(
                f"{self} belongs to another run: it has {'; '.join(differing)}. Choose another folder, or "
                "start with what it was made with"
            )
        if not theirs.get("device"):
            self.put("run.json", (json.dumps(ours | {"device": device}, indent=2) + "\n").encode())
        return run

    def configuration(self) -> dict[str, Any] | None:
        """What the folder is for; None if it is new."""
        if not self.has("run.json"):
            return None
        try:
            found = json.loads(self.get("run.json"))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UnreadableFile(
                f"{self}/run.json is damaged; remove it, and the command that made the folder goes on"
            )
        return found

    def put(self, name: str, content: Any) -> None:
        """Writes a file, whole or not at all."""
        path = self._path(name)
        if self._objects:
            self.fs.pipe_file(path, bytes(content))
            return
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self.create(name, sweep=False) as file:  # many files of one folder: see `mend`
            file.write(content if self.local else bytes(content))

    @contextmanager
    def create(self, name: str, *, sweep: bool = True) -> Iterator[Any]:
        """A file to write to piece by piece; it has its name when all is written."""
        path = self._path(name)
        if self.local:
            with whole_file(path, sweep=sweep) as local, local.open("wb") as file:
                yield file
            return
        part = f"{path}.{uuid4().hex[:8]}.part"  # of its own, whoever else writes
        with self.fs.open(part, "wb") as file:
            yield file
        try:
            self.fs.mv(part, path)
        except OSError:  # some stores do not replace a file
            if not self.fs.exists(path):
                raise
            self.fs.rm_file(path)
            self.fs.mv(part, path)

    def put_text(self, name: str, text: str) -> str:
        """Writes a text, and returns where it is."""
        self.put(name, text.encode())
        return f"{self}/{name}"

    def get(self, name: str) -> bytes:
        """A file that `put` wrote."""
        try:
            content: bytes = self.fs.cat_file(self._path(name))
        except FileNotFoundError:
            raise UnreadableFile(f"{self} has no file {name}") from None
        return content

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return bool(self.fs.exists(self._path(name)))

    def ledger(self, given: LedgerPath | None = None) -> str | None:
        """The ledger that this run was certified with, None before; refuses another, and a lost one.

        Another ledger would not know that the run's units were looked at.
        """
        if not self.has(LEDGER):
            return None
        known = ledger_name(self.get(LEDGER).decode().strip())
        moved = f"if it was moved, write its new path into {self}/{LEDGER}"
        if given is not None and ledger_name(given) != known:
            raise InvalidInput(
                f"--ledger must be the one that {self} was certified with, {known}, got {given}, which does "
                f"not know of that look; {moved}"
            )
        if not ledger_exists(known):
            raise InvalidInput(
                f"the ledger that {self} was certified with, {known}, is missing: put it back, or, {moved}"
            )
        return known

    def keep(self, receipt: Receipt, content: NDArray[np.uint8]) -> None:
        """Writes the file of a finished shard."""
        self.put(_file(receipt), content)

    def receipts(self, job: Job) -> dict[int, Receipt]:
        """The finished shards, by number, each read and checked."""
        return self._sort_files(job)[0]

    def mend(self, job: Job) -> tuple[dict[int, Receipt], int]:
        """The finished shards, by number, and how many are to be computed again because their file was
        removed: it was damaged, of other units or of another run. What killed drivers left goes too."""
        if self.local:
            for folder in (self.root, self._path("shards")):
                sweep_parts(folder)
        found, unsound = self._sort_files(job)
        for receipt in unsound:
            self.fs.rm_file(self._path(_file(receipt)))
        return found, len({receipt.number for receipt in unsound} - set(found))

    def _sort_files(self, job: Job) -> tuple[dict[int, Receipt], list[Receipt]]:
        """The finished shards, and the files that are none."""
        shards, run = {shard.number: shard for shard in job.shards}, self._digest()
        found: dict[int, Receipt] = {}
        unsound: list[Receipt] = []
        for receipt in self._list():
            if receipt.number in found or receipt.number not in shards:
                continue
            if self._read(receipt, shards[receipt.number], run) is not None:
                found[receipt.number] = receipt
            else:
                unsound.append(receipt)
        return found, unsound

    def check(self, job: Job) -> None:
        """Refuse a folder that lacks a shard at the end of a run; contents are checked when read."""
        there = {(receipt.number, receipt.n) for receipt in self._list()}
        missing = [shard for shard in job.shards if (shard.number, len(shard)) not in there]
        if missing:
            raise Incomplete(
                f"{self} lacks {len(missing):,} of {len(job.shards):,} shards that were written, first "
                f"{missing[0]}: something removed them; start the run again"
            )

    def over(
        self,
        shards: Sequence[Shard],
        function: Callable[[Shard, Arrays], Result],
        known: dict[int, Receipt] | None = None,
    ) -> Iterator[tuple[Shard, Result]]:
        """What `function` makes of each shard, in their order, in threads; refused unless all are there.

        known: the files that were read before, by shard: no other is taken for one of them; what is read now
            is added
        """
        run, listed = self._digest(), defaultdict[int, list[Receipt]](list)
        known = {} if known is None else known
        for receipt in self._list():
            if known.get(receipt.number, receipt) == receipt:
                listed[receipt.number].append(receipt)
        missing = [shard for shard in shards if shard.number not in listed]
        if missing:
            raise Incomplete(f"{self} lacks {len(missing):,} of {len(shards):,} shards, first {missing[0]}")

        def read(shard: Shard) -> Result:
            for receipt in listed[shard.number]:
                arrays = self._read(receipt, shard, run)
                if arrays is not None:
                    known[shard.number] = receipt
                    return function(shard, arrays)
            raise Incomplete(
                f"{self}/{_file(listed[shard.number][0])} is damaged, or of another run or other units: "
                "start the run again to compute it anew"
            )

        yield from zip(shards, _in_threads(read, shards, 1 if self.alone else READERS), strict=True)

    def read_all(self, *, early: bool = False) -> Arrays:
        """The arrays of all finished shards of a run, each verified, with a row for each unit; refused unless
        all of its units are there, or if it may have stopped `early`, all before the last that is."""
        run, parts = self._digest(), dict[int, Arrays]()
        for receipt in self._list():
            content = self._verify(receipt)
            if content is not None and read_label(content) == run:
                parts[receipt.number] = unpack(content)
        have = sum(len(part["ids"]) for part in parts.values())
        stopped = early and sorted(parts) == list(range(len(parts))) and bool(parts)
        if have != (units := (self.configuration() or {}).get("units")) and not stopped:
            raise Incomplete(f"{self} has {have:,} of {units:,} units: start the run again to finish it")
        ordered = [parts[number] for number in sorted(parts)]
        return {name: np.concatenate([part[name] for part in ordered]) for name in ordered[0]}

    def _digest(self) -> str:
        """The digest of the run that this folder is for."""
        return digest_run(self.configuration() or {})

    def _list(self) -> list[Receipt]:
        """Every file that is named like a shard, by name."""
        folder = self._path("shards")
        names = self.fs.ls(folder, detail=False, refresh=True) if self.fs.exists(folder) else []
        matches = filter(None, (_NAME.fullmatch(name.rpartition("/")[2]) for name in sorted(names)))
        return [Receipt(int(match[1]), int(match[2]), match[3], 0) for match in matches]

    def _read(self, receipt: Receipt, shard: Shard, run: str) -> Arrays | None:
        """The arrays of a file, or None unless they are what was written, by this run, for these units."""
        content = self._verify(receipt)
        if content is None or read_label(content) != run:
            return None
        arrays = unpack(content)
        return arrays if np.array_equal(arrays["ids"], shard.array) else None

    def _verify(self, receipt: Receipt) -> bytes | None:
        """A file as it was written; None if it is gone or damaged."""
        try:
            content: bytes = self.fs.cat_file(self._path(_file(receipt)))
        except FileNotFoundError:
            return None
        return content if hashlib.sha256(content).hexdigest() == receipt.digest else None

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


def _in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> Iterator[Result]:
    """What a function makes of each item, in their order; no more are begun than there are threads."""
    with ThreadPoolExecutor(threads) as pool:
        begun: deque[Future[Result]] = deque()
        try:
            for item in items:
                begun.append(pool.submit(function, item))
                if len(begun) == threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for future in begun:
                future.cancel()


def _file(receipt: Receipt) -> str:
    return f"shards/{receipt.number:06d}-{receipt.n}-{receipt.digest}.arrow"


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """In words, what differs."""
    found = []
    for name in ours | theirs:
        was, now = (side.get(name) for side in (theirs, ours))
        if was == now:
            continue
        if isinstance(was, dict | None) and isinstance(now, dict | None):
            found += _differences(was or {}, now or {})
        elif name == "ids":
            found.append("other unit ids or shards")
        else:
            old, new = (_DIGEST.sub("", side) if isinstance(side, str) else side for side in (was, now))
            same = f"another version of {old or name}"
            found.append(same if old == new else f"{name} {old!r} and not {new!r}")
    return found
