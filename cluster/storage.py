"""The folder of a run: finished shards as Arrow files, complete or absent, each named by its checksum.

A folder is a local path or any URL that fsspec understands. A shard's file is
``shards/000012-512-<SHA-256>.arrow``: number, units and content, so nothing else has to be kept in
step with it. Credentials come from the environment; a URL that holds some is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import fsspec
import numpy as np
from numpy.typing import NDArray

from cluster.errors import Incomplete
from cluster.packing import unpack
from cluster.scoring import Arrays, Job, Receipt
from cluster.shards import Shard
from pac_core import InvalidInput, UnreadableFile

Result = TypeVar("Result")
_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]{64})\.arrow")
_SECRET = re.compile(r"(key|secret|token|password|sig)[^=&]*=", re.IGNORECASE)


class RunFolder:
    """Where a run keeps its shards; reading and writing are the same for every place."""

    def __init__(self, url: str | Path) -> None:
        refuse_secrets(str(url))
        self.url = str(url)
        try:
            self.fs, root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise InvalidInput(f"the run folder must be a path or a URL that fsspec opens: {error}") from None
        self.root = root.rstrip("/")
        self.local = "file" in self.fs.protocol or "local" in self.fs.protocol

    def __str__(self) -> str:
        return self.url

    def claim(self, job: Job) -> None:
        """Writes down what the folder is for; refuses one that belongs to another job."""
        ours = json.loads(json.dumps(job.describe()))
        theirs = self.configuration()
        if theirs is None:
            return self.put("run.json", (json.dumps(ours, indent=2) + "\n").encode())
        differing = [_difference(name, theirs, ours) for name in ours | theirs]
        if any(differing):
            raise InvalidInput(
                f"{self} belongs to another run: it has {'; '.join(filter(None, differing))}. Choose "
                "another folder, or start with what it was made with"
            )

    def configuration(self) -> dict[str, Any] | None:
        """What the folder is for; None if it is new."""
        if not self.fs.exists(self._path("run.json")):
            return None
        try:
            found = json.loads(self.fs.cat_file(self._path("run.json")))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UnreadableFile(f"{self}/run.json is damaged; remove the folder to start anew")
        return found

    def put(self, name: str, content: Any) -> None:
        """Writes a file, whole or not at all."""
        path = self._path(name)
        if not self.local:  # object stores show an object when all of it is there
            self.fs.pipe_file(path, bytes(content))
            return
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(f"{path}.part", memoryview(content))
        self.fs.mv(f"{path}.part", path)

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

    def keep(self, receipt: Receipt, content: NDArray[np.uint8]) -> None:
        """Writes the file of a finished shard."""
        self.put(_file(receipt), content)

    def receipts(self, job: Job) -> dict[int, Receipt]:
        """The finished shards, by number, each read and checked; what is damaged is removed."""
        sizes = {shard.number: len(shard) for shard in job.shards}
        found: dict[int, Receipt] = {}
        for receipt in self._listed():
            if receipt.number in found or sizes.get(receipt.number) != receipt.n:
                continue
            if self._content(receipt) is None:
                self.fs.rm_file(self._path(_file(receipt)))
                continue
            found[receipt.number] = receipt
        return found

    def read(self, receipt: Receipt, shard: Shard) -> Arrays:
        """The arrays of a shard, refused unless they are what was written, for these units."""
        content = self._content(receipt)
        if content is None:
            raise Incomplete(
                f"{self}/{_file(receipt)} is damaged or gone; start the run again to compute it anew"
            )
        arrays = unpack(content)
        if not np.array_equal(arrays["ids"], np.asarray(shard.ids)):
            raise Incomplete(f"{self}/{_file(receipt)} holds other units than {shard}")
        return arrays

    def over(
        self, shards: Sequence[Shard], function: Callable[[Shard, Arrays], Result]
    ) -> Iterator[tuple[Shard, Result]]:
        """What `function` makes of each shard, one at a time; refused unless all are there, each once."""
        listed = {receipt.number: receipt for receipt in self._listed()}
        missing = [shard for shard in shards if shard.number not in listed]
        if missing:
            raise Incomplete(f"{self} lacks {len(missing):,} of {len(shards):,} shards, first {missing[0]}")
        for shard in shards:
            yield shard, function(shard, self.read(listed[shard.number], shard))

    def _listed(self) -> list[Receipt]:
        """Every file that is named like a shard; where there are two of a number, the first name counts."""
        folder = self._path("shards")
        names = self.fs.ls(folder, detail=False, refresh=True) if self.fs.exists(folder) else []
        matches = filter(None, (_NAME.fullmatch(name.rpartition("/")[2]) for name in sorted(names)))
        found: dict[int, Receipt] = {}
        for match in matches:
            found.setdefault(int(match[1]), Receipt(int(match[1]), int(match[2]), match[3], 0))
        return list(found.values())

    def _content(self, receipt: Receipt) -> bytes | None:
        """The bytes of a shard's file, or None if they are not those that were written."""
        try:
            content: bytes = self.fs.cat_file(self._path(_file(receipt)))
        except FileNotFoundError:
            return None
        return content if hashlib.sha256(content).hexdigest() == receipt.digest else None

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


def refuse_secrets(url: str) -> None:
    """Refuse a URL that holds a user, a password or a key: it is printed and written down."""
    parts = urlsplit(url)
    if parts.scheme and (parts.password is not None or _SECRET.search(parts.query)):
        raise InvalidInput(
            f"the run folder must be a URL without credentials (got one on {parts.hostname}): storage "
            "libraries take them from the environment or their own configuration"
        )


def _file(receipt: Receipt) -> str:
    return f"shards/{receipt.number:06d}-{receipt.n}-{receipt.digest}.arrow"


def _difference(name: str, theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """In words, what differs under this name; empty if nothing does."""
    was, now = (side.get(name) for side in (theirs, ours))
    if was == now:
        return ""
    if isinstance(was, dict) and isinstance(now, dict):
        return ", ".join(filter(None, (_difference(part, was, now) for part in was | now)))
    if name == "ids":
        return "other unit ids or shards"
    return f"{name} {was!r} and not {now!r}"
