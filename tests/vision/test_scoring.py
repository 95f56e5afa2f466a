"""A worker's result for an image is the image's own, bit for bit, whatever shard it came in."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pac_core import InvalidInput, LogitForecast, UnreadableFile, nll
from pac_vision import ClassifyImages, Images


def score(scorer: ClassifyImages, ids: Any) -> dict[str, Any]:
    return scorer(SimpleNamespace(ids=list(ids)), {})


@pytest.fixture
def args(images: Images, networks: str) -> tuple[str, dict[str, int], str]:
    return images.folder, images.by_id(3), f"python:{networks}:stripes"


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


def test_a_broken_image_is_never_skipped(images: Images, args: Any, tmp_path: Path) -> None:
    shutil.copytree(images.folder, tmp_path / "copy")
    name = images.ids[4]
    (tmp_path / "copy" / name).write_bytes((Path(images.folder) / name).read_bytes()[:300])
    scorer = ClassifyImages(str(tmp_path / "copy"), *args[1:])
    assert len(score(scorer, images.ids[:4])["ids"]) == 4
    with pytest.raises(UnreadableFile, match=f"{name} cannot be read as an image"):
        score(scorer, images.ids)


def test_arguments_are_refused_by_name(images: Images, args: Any) -> None:
    folder, labels, name = args
    with pytest.raises(InvalidInput, match=r"labels must lie in 0\.\.2, got 3"):
        ClassifyImages(folder, labels | {"a.png": 3}, name)
    with pytest.raises(InvalidInput, match="batch must be"):
        ClassifyImages(folder, labels, name, 0)
    with pytest.raises(InvalidInput, match=r"among the 60 units of the scorer, got 'a.png'"):
        score(ClassifyImages(*args), ["a.png"])


def test_logits_that_are_no_numbers_are_refused(images: Images, args: Any) -> None:
    scorer = ClassifyImages(*args)
    lost = SimpleNamespace(**vars(scorer.model) | {"logits": lambda batch: np.full((1, 3), np.nan)})
    scorer.model = lost  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match=f"got NaN for {images.ids[0]}"):
        score(scorer, images.ids[:2])
