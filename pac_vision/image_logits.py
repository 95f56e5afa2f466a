"""What a model says of images: each image's logits are its own, whatever it is computed beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, UnreadableFile
from pac_core.arrays import returned
from pac_core.bounds import whole
from pac_vision.classifiers import Classifier
from pac_vision.decoding import BrokenImage, first_line
from pac_vision.sources import Source

BROKEN = ("error", "miss")


class ImageLogits:
    """Logits of images by their ids, and which of the images are broken.

    source: of the images
    model: the classifier
    batch: images computed together; by default as many as the model is fixed to, or 1
    broken: an image that cannot be decoded or preprocessed, or whose logits are no numbers: ``error`` refuses
        it with its path, ``miss`` marks it as failed
    unreadable: whether ``miss`` counts a file that cannot be read at all, too: not where sets are calibrated
        or tested, because a share that is down says nothing of its images

    `reasons` says of each image that was marked as failed why it was.

    Sums are rounded differently in batches of other sizes, and even in other rows of one batch. So each
    image has its own row, its place among the sorted ids modulo `batch`, and empty rows are padded.
    On a CPU a batch of one takes a tenth longer than the best; a GPU wants more.
    """

    def __init__(
        self,
        source: Source,
        model: Classifier,
        batch: int | None = None,
        broken: str = "error",
        *,
        unreadable: bool = False,
    ) -> None:
        if broken not in BROKEN:
            raise InvalidInput(f"broken must be one of {', '.join(BROKEN)}, got {broken!r}")
        self.source, self.model, self.broken, self.unreadable = source, model, broken, unreadable
        self.batch = whole("batch", (model.batch or 1) if batch is None else batch, least=1)
        if model.batch not in (None, self.batch):
            raise InvalidInput(f"batch must be {model.batch}, which {model.name} is fixed to, got {batch}")
        self.reasons: list[str] = []
        self.rows = {name: place % self.batch for place, name in enumerate(sorted(source.ids.tolist()))}

    def __call__(self, names: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """`[n, K]` logits of ids of the source, NaN for a broken image, and `[n]` which are broken."""
        ids = list(names)
        logits = np.full((len(ids), self.model.classes), np.nan, np.float32)
        failed = np.zeros(len(ids), bool)
        for group in by_row([self.rows[name] for name in ids], self.batch):
            images = {row: self.read(ids[place]) for row, place in group.items()}
            sound = {row: image for row, image in images.items() if image is not None}
            failed[[group[row] for row in images if row not in sound]] = True
            if not sound:
                continue
            rows, shape = list(sound), next(iter(sound.values())).shape
            stack = np.zeros((self.batch, *shape), np.float32)
            for row, image in sound.items():
                if image.shape != shape:
                    raise InvalidInput(
                        f"images computed together must have one shape, got {shape} and {image.shape} for "
                        f"{ids[group[row]]}: take a batch of 1, or another preprocessing"
                    )
                stack[row] = image
            expected = (self.batch, self.model.classes)
            found = returned(f"the logits of {self.model.name}", self.model.logits(stack), expected, stack)
            logits[[group[row] for row in rows]] = found[rows]
        numbers = np.asarray((logits < np.inf).all(axis=1) & (logits > -np.inf).any(axis=1))
        for place in np.flatnonzero(~numbers & ~failed).tolist():
            rule = "must give logits that are numbers, got NaN or infinity for"
            if self.broken == "error":
                raise InvalidInput(f"{self.model.name} {rule} {ids[place]}")
            self.reasons.append(f"{self.model.name} {rule} {ids[place]}")
        logits[~numbers] = np.nan
        return logits, ~numbers

    def read(self, name: str) -> NDArray[np.float32] | None:
        """Read and preprocess an image, `[3, H, W]`; None if it is broken and that is allowed."""
        try:
            image = self.source.image(name)
            try:
                return self.model.preprocess(image)
            except MemoryError:  # the machine's failure, not the image's
                raise
            except Exception as error:  # one pixel has no centre; and the function may be a user's
                where = f"{self.source.folder}/{name}"
                raise BrokenImage(f"{where} cannot be used: {first_line(error)}") from error
        except UnreadableFile as error:
            if self.broken == "error" or not (self.unreadable or isinstance(error, BrokenImage)):
                raise
            self.reasons.append(str(error))
            return None


def by_row(rows: Sequence[int], batch: int) -> Iterator[dict[int, int]]:
    """Groups {row: place in `rows`} that hold each place once, and each row at most once.

    >>> list(by_row([2, 0, 1, 2], batch=3))
    [{0: 1, 1: 2, 2: 0}, {2: 3}]
    """
    places = [[place for place, own in enumerate(rows) if own == row] for row in range(batch)]
    for turn in range(max(map(len, places))):
        yield {row: queue[turn] for row, queue in enumerate(places) if turn < len(queue)}
