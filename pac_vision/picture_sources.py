"""Which of the classified images are at hand to be drawn, with the sets they got."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import PurePosixPath

from pac_core import InvalidInput
from pac_vision.class_results import ClassResults, Measured
from pac_vision.images import Images
from pac_vision.set_pictures import Pictured


def picture_cases(results: ClassResults, found: Measured, images: Images) -> list[Pictured]:
    """The images of the test part, which nothing was fitted on, that the folder holds, with their sets.

    Stored logits may know an image by its file name alone, so those are compared where the whole id is not
    found. An image whose folder says another label than the logits' is refused.
    """
    if found.predictor is None:
        raise InvalidInput(f"found must be sets of a predictor, got the baseline {found.sets!r}")
    model = next(model for model in results.models if model.name == found.model)
    rows = results.parts.test.rows
    ids, (forecast, labels) = model.ids[rows].tolist(), model.take(rows)
    where = _places(images)
    known = images.classes is None or len(images.classes) == model.classes
    truth = dict(zip(images.ids.tolist(), images.labels.tolist(), strict=True))
    at_hand = [(i, place) for i, name in enumerate(ids) if (place := _find(where, name)) is not None]
    for i, place in at_hand:
        if known and truth[place] != labels[i]:
            raise InvalidInput(
                f"{place} must have one label, got {truth[place]} from its folder and {labels[i]} from "
                f"{model.name}"
            )
    chosen = [i for i, _ in at_hand]
    if not chosen:
        return []
    some = forecast.take(chosen)
    return [
        Pictured(partial(images.image, place), int(labels[i]), int(prediction), members)
        for (i, place), prediction, members in zip(
            at_hand, some.predictions(), found.predictor.sets(some).labels(), strict=True
        )
    ]


def _places(images: Images) -> dict[str, str]:
    """From id, and from file name where only one image has it, to the id in the folder."""
    ids = images.ids.tolist()
    names = Counter(PurePosixPath(name).name for name in ids)
    short = {PurePosixPath(name).name: name for name in ids if names[PurePosixPath(name).name] == 1}
    return short | {name: name for name in ids}


def _find(where: dict[str, str], name: str) -> str | None:
    return where.get(name) or where.get(PurePosixPath(name).name)
