"""A worker's result for an image is the image's own, bit for bit, whatever shard it came in."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pac_core import InvalidInput, LogitForecast
from pac_core.errors import UnreadableFile
from pac_core.scores import nll
from pac_vision import Classifier, ImageLogits, efficientnet_lite, find_images
from pac_vision.images import BrokenImage, Images, find_unlabelled_images
from pac_vision.tasks import ClassifyImages


def score(scorer: ClassifyImages, ids: Any) -> dict[str, Any]:
    return scorer(SimpleNamespace(ids=list(ids)), {})


@pytest.fixture
def args(images: Images, networks: str) -> tuple[Images, str]:
    return images, f"python:{networks}:stripes"


def test_a_trained_network_knows_its_stripes(images: Images, args: Any) -> None:
    found = score(ClassifyImages(*args, device="cpu"), images.ids)
    assert found["ids"].tolist() == images.ids.tolist()
    assert found["labels"].tolist() == images.labels.tolist()
    assert (found["logits"].shape, found["logits"].dtype) == ((60, 3), np.float32)
    assert (found["logits"].argmax(axis=1) == found["labels"]).mean() > 0.9
    assert np.isfinite(nll(LogitForecast(found["logits"]), found["labels"])).all()


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_order_grouping_and_threads_change_no_bit(images: Images, args: Any, batch: int) -> None:
    scorer = ClassifyImages(*pickle.loads(pickle.dumps(args)), batch)
    whole = dict(zip(images.ids, score(scorer, images.ids)["logits"], strict=True))
    drawn = np.random.default_rng(batch)
    before = torch.get_num_threads()
    for parts, threads in ((60, 1), (7, 2), (2, 3)):
        torch.set_num_threads(threads)
        for part in np.array_split(drawn.permutation(images.ids), parts):
            found = score(scorer, part)
            assert found["ids"].tolist() == part.tolist()
            assert np.array_equal(found["logits"], [whole[name] for name in part])
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)


def damaged(images: Images, place: Path, *rows: int) -> Images:
    """A copy of the images, of which these are cut off."""
    shutil.copytree(images.folder, place)
    for row in rows:
        name = images.ids[row]
        (place / name).write_bytes((Path(images.folder) / name).read_bytes()[:300])
    return find_images(place)


def test_a_broken_image_is_never_skipped(images: Images, args: Any, tmp_path: Path) -> None:
    copy = damaged(images, tmp_path / "copy", 4)
    scorer = ClassifyImages(copy, args[1])
    assert len(score(scorer, images.ids[:4])["ids"]) == 4
    with pytest.raises(BrokenImage, match=f"copy/{images.ids[4]} cannot be read as an image"):
        score(scorer, images.ids)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_broken_image_may_count_as_a_miss_and_moves_no_other(
    images: Images, args: Any, tmp_path: Path, batch: int
) -> None:
    copy = damaged(images, tmp_path / "copy", 4, 9)
    found = score(ClassifyImages(copy, args[1], batch, "miss"), images.ids)
    assert np.flatnonzero(found["failed"]).tolist() == [4, 9]
    assert np.isnan(found["logits"][[4, 9]]).all()
    whole = score(ClassifyImages(*args, batch), images.ids)
    assert not whole["failed"].any()
    others = ~found["failed"]
    assert np.array_equal(found["logits"][others], whole["logits"][others])
    assert found["labels"].tolist() == whole["labels"].tolist()
    alone = score(ClassifyImages(copy, args[1], batch, "miss"), images.ids[[4]])
    assert alone["failed"].tolist() == [True]


def test_a_file_that_is_gone_is_no_miss(images: Images, args: Any, tmp_path: Path) -> None:
    copy = damaged(images, tmp_path / "copy")
    (tmp_path / "copy" / images.ids[4]).unlink()
    with pytest.raises(UnreadableFile, match="No such file"):
        score(ClassifyImages(copy, args[1], 1, "miss"), images.ids)


def test_an_image_without_a_centre_is_broken(networks: str, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (1, 1)).save(tmp_path / name / "1.png")
    source = find_unlabelled_images(tmp_path)
    model = Classifier(
        "small", 2, "", efficientnet_lite(8), lambda batch: np.zeros((len(batch), 2), np.float32)
    )
    with pytest.raises(BrokenImage, match=r"a/1\.png cannot be used: an image must have a centre"):
        ImageLogits(source, model)(["a/1.png"])


def test_logits_of_another_shape_are_not_broadcast(tmp_path: Path) -> None:
    """One number would be the logit of every class, and one row that of every image."""
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "1.png")
    for shape in ((2, 1), (1, 2), (2,)):
        model = Classifier("small", 2, "", efficientnet_lite(8), lambda batch: np.zeros(shape, np.float32))  # noqa: B023
        with pytest.raises(InvalidInput, match=r"logits of small must be numbers of shape \(2, 2\), got"):
            ImageLogits(find_unlabelled_images(tmp_path), model, 2)(["a/1.png", "b/1.png"])


def test_arguments_are_refused_by_name(images: Images, args: Any) -> None:
    with pytest.raises(InvalidInput, match=r"labels must lie in 0\.\.2, got 3"):
        ClassifyImages(replace(images, labels=images.labels + 1), args[1])
    with pytest.raises(InvalidInput, match="batch must be"):
        ClassifyImages(*args, 0)
    with pytest.raises(InvalidInput, match="broken must be one of error, miss, got 'skip'"):
        ClassifyImages(*args, 1, "skip")
    with pytest.raises(InvalidInput, match=r"among the 60 units of the scorer, got 'a.png'"):
        score(ClassifyImages(*args), ["a.png"])


def test_logits_that_are_no_numbers_are_refused(images: Images, args: Any) -> None:
    scorer = ClassifyImages(*args)
    lost = SimpleNamespace(**vars(scorer.model) | {"logits": lambda batch: np.full((1, 3), np.nan)})
    scorer.logits.model = lost  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match=f"got NaN or infinity for {images.ids[0]}"):
        score(scorer, images.ids[:2])
    scorer.logits.broken = "miss"
    found = score(scorer, images.ids[:2])
    assert found["failed"].all()
    assert np.isnan(found["logits"]).all()


def test_what_a_preprocessing_of_yours_cannot_take_is_broken(images: Images, args: Any) -> None:
    scorer = ClassifyImages(*args, 1, "miss")
    own, odd = scorer.model.preprocess, images.image(str(images.ids[1]))

    def preprocess(image: Image.Image) -> Any:
        if np.array_equal(image, odd):
            raise ZeroDivisionError("no light")
        return own(image)

    expected = score(scorer, images.ids[:3])["logits"]
    scorer.logits.model = replace(scorer.model, preprocess=preprocess)
    found = score(scorer, images.ids[:3])
    assert found["failed"].tolist() == [False, True, False]
    assert np.array_equal(found["logits"][[0, 2]], expected[[0, 2]])
    assert scorer.logits.reasons == [f"{images.folder}/{images.ids[1]} cannot be used: no light"]
    scorer.logits.broken = "error"
    with pytest.raises(BrokenImage, match=f"{images.ids[1]} cannot be used: no light"):
        score(scorer, images.ids[:3])


def test_images_of_another_shape_are_never_broadcast(images: Images, args: Any) -> None:
    """A preprocessing that keeps grey images at one channel would fill all three."""
    scorer = ClassifyImages(*args, 4)
    own, odd = scorer.model.preprocess, images.image(str(images.ids[1]))
    scorer.logits.model = replace(
        scorer.model, preprocess=lambda image: own(image)[: 1 if np.array_equal(image, odd) else 3]
    )
    with pytest.raises(InvalidInput, match=r"must have one shape, got \(3, 24, 24\) and \(1, 24, 24\)"):
        score(scorer, images.ids[:3])
