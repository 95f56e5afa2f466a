"""Every image of a folder is found with its label, or the folder is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_layouts import as_parquet, as_tars

from pac_core import InvalidInput, PACError
from pac_core.errors import UnreadableFile
from pac_vision import find_images, read_image
from pac_vision.images import BrokenImage, Images


def put(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 5), colour).save(path)
    return path


def test_named_folders_are_counted_in_the_order_of_their_names(images: Images) -> None:
    assert images.classes == ("across", "down", "slanted")
    assert images.ids.tolist() == sorted(images.ids.tolist())
    assert len(images.ids) == 60
    kinds = [images.classes[label] for label in images.labels]
    assert kinds == [name.split("/")[0] for name in images.ids]


def test_folders_named_by_index_keep_their_number(tmp_path: Path) -> None:
    for name in ("0007/b.png", "0012/a.JPEG", "0007/a.png"):
        put(tmp_path / name)
    (tmp_path / ".DS_Store").write_text("")
    found = find_images(tmp_path)
    assert found.ids.tolist() == ["0007/a.png", "0007/b.png", "0012/a.JPEG"]
    assert found.labels.tolist() == [7, 7, 12]
    assert found.classes is None
    assert found.by_id(13) == {"0007/a.png": 7, "0007/b.png": 7, "0012/a.JPEG": 12}
    with pytest.raises(InvalidInput, match=r"must lie in 0\.\.11, got 12 for 0012/a\.JPEG"):
        found.by_id(12)


def test_the_order_of_a_model_may_be_another(tmp_path: Path) -> None:
    put(tmp_path / "cat/1.png")
    put(tmp_path / "ant/1.png")
    assert find_images(tmp_path).labels.tolist() == [0, 1]
    assert find_images(tmp_path, classes=["bee", "cat", "ant"]).labels.tolist() == [2, 1]
    with pytest.raises(InvalidInput, match=r"the model has 3 classes but .* names 2"):
        find_images(tmp_path).by_id(3)
    with pytest.raises(UnreadableFile, match="cat is not among the 1 names"):
        find_images(tmp_path, classes=["ant"])
    with pytest.raises(InvalidInput, match="unique, got 1 repeats"):
        find_images(tmp_path, classes=["ant", "ant"])


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("b.png 3\nc.png 0\na.png 1\n", [1, 3, 0]),
        ("1\n3\n0", [1, 3, 0]),
        ("two\n0\nzero\n\n", [2, 0, 0]),
    ],
)
def test_a_label_file_names_the_files_or_follows_their_order(
    tmp_path: Path, text: str, labels: list[int]
) -> None:
    for name in "abc":
        put(tmp_path / f"{name}.png")
    file = tmp_path / "val.txt"
    file.write_text(text)
    classes = ["zero", "one", "two", "three"] if "two" in text else None
    assert find_images(tmp_path, labels=file, classes=classes).labels.tolist() == labels


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1\n2\n", "must have a line per image, got 2 for 3 images"),
        ("1\n2\n3\n4\n", "must have a line per image, got 4 for 3 images"),
        ("1\n-2\n0\n", "line 2 must have a class index from 0, got '-2'"),
        ("1\ndog\n0\n", "line 2 must have a class index from 0, got 'dog'"),
        ("1\n0\n5\n", r"line 3 must have a label in 0\.\.4, got 5"),
        ("a.png 1\n2\nc.png 1\n", "line 2 must be 'file label' or 'label'"),
        ("1\n\n2\n", "line 2 must be 'file label' or 'label'"),
        ("a.png 1\nb.png 2\nb.png 1\n", "line 3 labels b.png a second time"),
        ("a.png 1\nb.png 2\nd.png 1\n", "has no label for c.png"),
    ],
)
def test_label_files_are_refused_with_their_line(tmp_path: Path, text: str, said: str) -> None:
    for name in "abc":
        put(tmp_path / f"images/{name}.png")
    file = tmp_path / "val.txt"
    file.write_text(text)
    with pytest.raises(UnreadableFile, match=f"val.txt {said}"):
        find_images(tmp_path / "images", labels=file, classes=["v", "w", "x", "y", "z"])


def test_digits_in_a_label_file_are_read_where_there_is_one_way_to(tmp_path: Path) -> None:
    for name in "abc":
        put(tmp_path / f"images/{name}.png")
    file = tmp_path / "val.txt"
    for text, labels in (("0\n0\n0\n", [0, 0, 0]), ("10\n10\n10\n", [1, 1, 1])):
        file.write_text(text)
        assert (
            find_images(tmp_path / "images", labels=file, classes=["1", "10", "2"]).labels.tolist() == labels
        )
    file.write_text("0\n1\n2\n")
    assert find_images(tmp_path / "images", labels=file, classes=["0", "1", "2"]).labels.tolist() == [0, 1, 2]
    with pytest.raises(UnreadableFile, match=r"val\.txt line 2 must .* class 1 by its index and class 0 by"):
        find_images(tmp_path / "images", labels=file, classes=["1", "10", "2"])


def test_digits_as_folders_are_read_where_there_is_one_way_to(tmp_path: Path) -> None:
    for name in ("1", "2"):
        put(tmp_path / name / "a.png")
    assert find_images(tmp_path, classes=["0", "1", "2"]).labels.tolist() == [1, 2]
    assert find_images(tmp_path, classes=["cat", "dog", "elk"]).labels.tolist() == [1, 2]
    with pytest.raises(UnreadableFile, match=r"/1 must have .* class 1 by its index and class 0 by its name"):
        find_images(tmp_path, classes=["1", "10", "2"])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "holds no images"),
        (["a.png"], "must hold a folder per class and nothing else, .* got a.png"),
        (["0/a.png", "b.png"], "must hold a folder per class and nothing else, .* got b.png"),
        (["0/a.png", "dog/b.png"], "all be class indices or all be names, got 1 indices and dog"),
        (["1/a.png", "01/b.png"], "one folder per class index, got one written in two ways"),
        (["0/a.png", "1/notes.txt"], r"notes.txt is no image \(a file ending in"),
        (["0/a.png", "1/deeper/b.png"], "deeper is no image"),
    ],
)
def test_folders_that_leave_doubt_are_refused(tmp_path: Path, files: list[str], said: str) -> None:
    for name in files:
        if name.endswith("png"):
            put(tmp_path / name)
        else:
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_text("")
    with pytest.raises(UnreadableFile, match=said):
        find_images(tmp_path)


def test_missing_and_empty_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="there is no folder"):
        find_images(tmp_path / "nowhere")
    (tmp_path / "0").mkdir()
    with pytest.raises(UnreadableFile, match="holds no images"):
        find_images(tmp_path)
    put(tmp_path / "0/1.png")
    with pytest.raises(UnreadableFile, match=r"there is no file of labels .*val\.txt"):
        find_images(tmp_path / "0", labels=tmp_path / "val.txt")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr"])
def test_every_kind_of_image_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode in ("CMYK", "PA", "YCbCr") else "a.png")
    Image.new("RGB", (6, 5), "white").convert(mode).save(
        path, **({"transparency": b"\0"} if mode == "P" else {})
    )
    image = read_image(path)
    assert (image.mode, image.size) == ("RGB", (6, 5))
    assert np.asarray(image).min() == 255


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp"])
def test_broken_images_are_refused_with_their_path(tmp_path: Path, ending: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    path = tmp_path / f"cut.{ending}"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(UnreadableFile, match=rf"cut\.{ending} cannot be read as an image"):
        read_image(path)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("no image")
    with pytest.raises(UnreadableFile, match="it is no image that Pillow knows"):
        read_image(path)
    with pytest.raises(PACError, match="No such file"):
        read_image(tmp_path / "b.png")


UPRIGHT = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.transpose(1, 0, 2),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].transpose(1, 0, 2),
    8: lambda stored: np.rot90(stored),
    9: lambda stored: stored,  # no orientation at all
}


def with_orientation(path: Path, stored: Image.Image, orientation: int) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif)
    return path


@pytest.mark.parametrize("ending", ["png", "tif", "jpg"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_images_are_turned_as_their_exif_data_say(tmp_path: Path, orientation: int, ending: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (5, 6, 3), np.uint8))
    path = with_orientation(tmp_path / f"a.{ending}", noise, orientation)
    with Image.open(path) as plain:
        stored = np.asarray(plain) if ending == "jpg" else np.asarray(noise)
    assert np.array_equal(np.asarray(read_image(path)), UPRIGHT[orientation](stored))


def test_a_turned_image_in_a_tar_or_parquet_file_is_turned_too(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (5, 6, 3), np.uint8))
    (tmp_path / "images" / "0").mkdir(parents=True)
    for name in "abcd":
        with_orientation(tmp_path / "images" / "0" / f"{name}.png", noise, 6)
    images = find_images(tmp_path / "images")
    expected = np.rot90(np.asarray(noise), -1)
    places = (
        tmp_path / "images",
        as_tars(images, tmp_path / "tars"),
        as_parquet(images, tmp_path / "p.parquet"),
    )
    for place in places:
        found = find_images(place)
        assert np.array_equal(np.asarray(found.image(str(found.ids[0]))), expected)


def test_exif_data_that_cannot_be_read_turn_nothing(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (5, 6, 3), np.uint8))
    noise.save(tmp_path / "a.png", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.png")), np.asarray(noise))


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_of_16_bits_the_upper_8_are_taken(tmp_path: Path, ending: str) -> None:
    values = np.array([[0, 255, 256, 40_000], [4095, 65_535, 65_279, 65_280]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{ending}")
    seen = np.asarray(read_image(tmp_path / f"a.{ending}"))
    assert np.array_equal(seen, np.repeat((values >> 8)[..., None], 3, axis=2))


@pytest.mark.parametrize("mode", ["I", "F", "LAB"])
def test_images_whose_white_is_not_known_are_refused_by_name(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (4, 4)).save(tmp_path / "a.tif")
    with pytest.raises(BrokenImage, match=f"8 or 16 bits .* got mode {mode}: convert it beforehand"):
        read_image(tmp_path / "a.tif")


def test_transparency_is_ignored(tmp_path: Path) -> None:
    half = np.random.default_rng(0).integers(0, 255, (5, 6, 4), np.uint8)
    Image.fromarray(half).save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.png")), half[..., :3])
