"""Which of the classified images are at hand to be drawn, with the sets they got."""

from __future__ import annotations

from functools import partial

import numpy as np

from pac_core import InvalidInput
from pac_vision.class_results import ClassResults, Measured
from pac_vision.images import Images
from pac_vision.predictions import outcomes, places
from pac_vision.set_pictures import Pictured


def picture_cases(results: ClassResults, found: Measured, images: Images) -> list[Pictured]:
    """The images of the test part, which nothing was fitted on, that the folder holds, with their sets.

    They are found by `places`. A broken image cannot be drawn.
    """
    if found.predictor is None:
        raise InvalidInput(f"found must be sets of a predictor, got the baseline {found.sets!r}")
    model = next(model for model in results.models if model.name == found.model)
    where, whole = places(model, images), outcomes(model.forecast, model.labels) != "broken"
    at_hand = {row: place for row in results.parts.test.rows if whole[row] and (place := where[row])}
    if not at_hand:
        return []
    forecast, labels = model.take(np.array(list(at_hand)))
    return [
        Pictured(partial(images.image, place), int(label), int(prediction), members)
        for place, label, prediction, members in zip(
            at_hand.values(),
            labels,
            forecast.predictions(),
            found.predictor.sets(forecast).labels(),
            strict=True,
        )
    ]
