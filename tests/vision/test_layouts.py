"""The same images in tar shards and parquet files have the same pixels and labels, or are refused."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from toy_layouts import as_parquet, as_tars, write_tar

from pac_core import InvalidInput
from pac_core.errors import UnreadableFile
from pac_vision import find_images
from pac_vision.images import BrokenImage, Images, find_unlabelled_images
from pac_vision.images.archives import ParquetReader
from pac_vision.tasks import ClassifyImages

PNG = io.BytesIO()
Image.new("RGB", (6, 5), "red").save(PNG, "png")
RED = PNG.getvalue()


def by_key(images: Images, key: Any) -> dict[str, tuple[Any, int]]:
    """Pixels and label of each image, by what it is called in all layouts."""
    pairs = zip(images.ids.tolist(), images.labels.tolist(), strict=True)
    return {key(name): (np.asarray(images.image(name)), label) for name, label in pairs}


def test_pixels_and_labels_are_the_same_in_every_layout(images: Images, tmp_path: Path) -> None:
    order = images.ids.tolist()
    plain = by_key(images, lambda name: name.rpartition(".")[0])
    tars = find_images(as_tars(images, tmp_path / "tars"))
    assert tars.ids[0] == "part-0.tar/across/000"
    parquet = find_images(as_parquet(images, tmp_path / "a.parquet"))
    assert parquet.ids[:2].tolist() == ["a.parquet/0000000", "a.parquet/0000001"]
    bare = find_images(as_parquet(images, tmp_path / "many" / "b.parquet", plain=True).parent)

    def row(name: str) -> str:
        return str(order[int(name.rpartition("/")[2])].rpartition(".")[0])

    for found, key in ((tars, lambda name: name.partition("/")[2]), (parquet, row), (bare, row)):
        other = by_key(pickle.loads(pickle.dumps(found)), key)
        assert other.keys() == plain.keys()
        for name, (pixels, label) in plain.items():
            assert np.array_equal(other[name][0], pixels)
            assert other[name][1] == label


def test_logits_are_the_same_in_every_layout(images: Images, networks: str, tmp_path: Path) -> None:
    model = f"python:{networks}:stripes"

    def logits(found: Images) -> Any:
        return ClassifyImages(found, model)(SimpleNamespace(ids=found.ids.tolist()), {})["logits"]

    parquet = find_images(as_parquet(images, tmp_path / "a.parquet"))
    assert np.array_equal(logits(parquet), logits(images))
    tars = find_images(as_tars(images, tmp_path / "tars", shards=1))  # one shard keeps the order of the ids
    assert np.array_equal(logits(tars), logits(images))


def test_json_labels_classes_and_a_pattern(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("x.png", RED), ("x.json", b'{"label": 2, "w": 1}')])
    write_tar(tmp_path / "b.tar", [("./d/y.PNG", RED), ("./d/y.cls", b"cat\n"), ("d/y.txt", b"a photo")])
    found = find_images(tmp_path / "*.tar", classes=["ant", "bee", "dog", "cat"])
    assert found.ids.tolist() == ["a.tar/x", "b.tar/d/y"]
    assert found.labels.tolist() == [2, 3]
    assert found.names == ("ant", "bee", "dog", "cat")
    assert find_unlabelled_images(tmp_path).ids.tolist() == found.ids.tolist()


def test_a_number_is_an_index_though_classes_are_named_by_digits(tmp_path: Path) -> None:
    members = [m for i in range(3) for m in ((f"{i}.png", RED), (f"{i}.cls", f"{i}\n".encode()))]
    digits = ["1", "10", "2"]
    assert find_images(write_tar(tmp_path / "c.tar", members), classes=digits).labels.tolist() == [0, 1, 2]
    members = [m for i in range(3) for m in ((f"{i}.png", RED), (f"{i}.json", b'{"label": %d}' % i))]
    assert find_images(write_tar(tmp_path / "j.tar", members), classes=digits).labels.tolist() == [0, 1, 2]
    pq.write_table(pa.table({"image": [RED] * 3, "label": [0, 1, 2]}), tmp_path / "p.parquet")
    assert find_images(tmp_path / "p.parquet", classes=digits).labels.tolist() == [0, 1, 2]
    about = hugging_face(digits)
    stored = pa.table({"image": [RED] * 3, "label": [0, 1, 2]}).replace_schema_metadata(about)
    pq.write_table(stored, tmp_path / "s.parquet")
    assert find_images(tmp_path / "s.parquet").labels.tolist() == [0, 1, 2]
    pq.write_table(pa.table({"image": [RED], "label": ["1"]}), tmp_path / "t.parquet")
    with pytest.raises(UnreadableFile, match="'1', which is class 1 by its index and class 0 by its name"):
        find_images(tmp_path / "t.parquet", classes=digits)


def hugging_face(names: list[str]) -> dict[bytes, bytes]:
    """What the datasets of Hugging Face write beside the columns."""
    feature = {"label": {"names": names, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": feature}}).encode()}


def test_a_tar_of_class_folders_or_with_a_label_file(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "v.tar", [("val/0003/a.png", RED), ("val/0001/b.png", RED)])
    assert find_images(tar).labels.tolist() == [1, 3]
    flat = write_tar(tmp_path / "flat" / "v.tar", [("b.png", RED), ("a.png", RED)])
    (tmp_path / "flat" / "val.txt").write_text("a.png 4\nb.png 0\n")
    assert find_images(flat, labels=tmp_path / "flat" / "val.txt").labels.tolist() == [4, 0]
    assert find_images(flat.parent, labels=tmp_path / "flat" / "val.txt").labels.tolist() == [4, 0]


def test_labels_without_names_follow_the_files_in_a_tar_as_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "val.txt").write_text("0\n1\n")
    (tmp_path / "plain").mkdir()
    for name in ("photo.png", "photo-1.png"):
        (tmp_path / "plain" / name).write_bytes(RED)
    plain = find_images(tmp_path / "plain", labels=tmp_path / "val.txt")
    assert dict(zip(plain.ids, plain.labels, strict=True)) == {"photo-1.png": 0, "photo.png": 1}
    for folder in ("", "val/"):
        members = [(f"{folder}photo.png", RED), (f"{folder}photo-1.png", RED)]
        tar = write_tar(tmp_path / "one" / "v.tar", members)
        found = find_images(tar, labels=tmp_path / "val.txt")
        assert found.ids.tolist() == [f"v.tar/{folder}photo", f"v.tar/{folder}photo-1"]
        assert found.labels.tolist() == [1, 0]


def test_labels_without_names_are_refused_for_several_tars_or_folders(tmp_path: Path) -> None:
    lines = tmp_path / "val.txt"
    lines.write_text("0\n1\n")
    folders = write_tar(tmp_path / "v.tar", [("x/a.png", RED), ("y/b.png", RED)])
    write_tar(tmp_path / "two" / "a.tar", [("b.png", RED)])
    write_tar(tmp_path / "two" / "b.tar", [("a.png", RED)])
    for source in (folders, tmp_path / "two"):
        with pytest.raises(UnreadableFile, match=r"val\.txt must have lines 'file label', because"):
            find_images(source, labels=lines)
    lines.write_text("a.png 5\nb.png 7\n")
    assert find_images(folders, labels=lines).labels.tolist() == [5, 7]
    assert find_images(tmp_path / "two", labels=lines).labels.tolist() == [7, 5]
    write_tar(tmp_path / "two" / "b.tar", [("b.png", RED)])
    with pytest.raises(UnreadableFile, match=r"b\.tar/b and .*a\.tar/b must have different file names"):
        find_images(tmp_path / "two", labels=lines)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("a.png", RED), ("a.cls", b"1"), ("b.png", RED)], r"v\.tar/b has no label: a member \.cls"),
        ([("a.png", RED), ("a.cls", b"1"), ("a.png", RED)], r"v\.tar/a\.png stands there twice"),
        ([("a.png", RED), ("a.cls", b"1"), ("a.cls", b"2")], r"v\.tar/a\.cls stands there twice"),
        ([("a.png", RED), ("a.cls", b"one")], r"v\.tar/a\.cls must have a class index from 0, got 'one'"),
        ([("a.png", RED), ("a.cls", b"-1")], r"v\.tar/a\.cls must have a class index from 0, got '-1'"),
        ([("a.png", RED), ("a.cls", b"3")], r"v\.tar/a\.cls must have a label in 0\.\.2, got 3"),
        ([("a.png", RED), ("a.cls", b"")], r"v\.tar/a\.cls must have a class index from 0, got ''"),
        ([("a.png", RED), ("a.json", b'{"text": "x"}')], r"v\.tar/a\.json must hold a label"),
        ([("a.png", RED), ("a.json", b'{"label": 1.5}')], r"v\.tar/a\.json must have a class index"),
        (
            [("a.png", RED), ("a.jpg", RED), ("a.cls", b"1")],
            r"v\.tar/a must have one image .* got \.jpg, \.png",
        ),
        ([("a.cls", b"1")], r"v\.tar/a must have one image .* got \.cls"),
        ([("README.md", b"")], r"v\.tar/README must have one image"),
        ([], r"v\.tar holds no images"),
    ],
)
def test_tars_that_leave_doubt_are_refused(
    tmp_path: Path, members: list[tuple[str, bytes]], said: str
) -> None:
    tar = write_tar(tmp_path / "v.tar", members)
    with pytest.raises(UnreadableFile, match=said):
        find_images(tar, classes=["x", "y", "z"])


def test_hidden_members_are_none(tmp_path: Path) -> None:
    members = [("a.png", RED), ("a.cls", b"1"), ("._a.png", b"?"), ("__MACOSX/.b.png", b"?"), ("./.x", b"")]
    assert find_images(write_tar(tmp_path / "v.tar", members)).ids.tolist() == ["v.tar/a"]


def test_a_tar_that_is_compressed_cut_off_or_two_is_refused(tmp_path: Path) -> None:
    members = [
        (f"{i}.{ending}", content) for i in range(3) for ending, content in (("png", RED), ("cls", b"1"))
    ]
    whole = write_tar(tmp_path / "v.tar", members).read_bytes()
    tar = tmp_path / "v.tar"
    tar.write_bytes(gzip.compress(whole))
    with pytest.raises(UnreadableFile, match=r"v\.tar is compressed \(gzip\)"):
        find_images(tar)
    length = (512 + -(-len(RED) // 512) * 512) + 1024  # an image and a label, each after its header
    for cut in (length + 700, 2 * length, 2 * length + 100, 3 * length - 10):
        tar.write_bytes(whole[:cut])
        with pytest.raises(UnreadableFile, match=r"v\.tar (cannot be read as a tar|is damaged or cut off)"):
            find_images(tar)
    tar.write_bytes(whole[:length] + b"x" * 512 + whole[length:])
    with pytest.raises(UnreadableFile, match=r"v\.tar is damaged or cut off"):
        find_images(tar)
    tar.write_bytes(whole + whole)
    with pytest.raises(UnreadableFile, match="must be one tar, got something after its end mark"):
        find_images(tar)


def test_a_link_in_a_tar_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "v.tar", "w") as tar:
        link = tarfile.TarInfo("a.png")
        link.type, link.linkname = tarfile.SYMTYPE, "b.png"
        tar.addfile(link)
    with pytest.raises(UnreadableFile, match=r"v\.tar/a\.png must be a plain file"):
        find_images(tmp_path / "v.tar")


def test_a_tar_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "v.tar", [("a.png", RED), ("a.cls", b"1")])
    found = find_images(tar)
    with pytest.raises(UnreadableFile, match=r"holds no image v\.tar/b"):
        found.image("v.tar/b")
    write_tar(tar, [("b.png", RED * 400), ("a.png", RED), ("a.cls", b"1")])
    with pytest.raises(UnreadableFile, match=r"v\.tar has changed since its members were found"):
        found.image("v.tar/a")


def test_folders_of_two_kinds_are_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "v.tar", [("a.png", RED), ("a.cls", b"1")])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UnreadableFile, match=r"must hold \.tar files and nothing else, got notes\.txt"):
        find_images(tmp_path)
    with pytest.raises(UnreadableFile, match=r"notes\.txt must be a folder or files ending in one of \.tar"):
        find_images(tmp_path / "notes.txt")


@pytest.mark.parametrize("ending", ["tar", "parquet"])
def test_places_that_are_no_files_are_refused(tmp_path: Path, ending: str) -> None:
    (tmp_path / "folders" / f"x.{ending}").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / f"x.{ending}").symlink_to(tmp_path / "nowhere")
    for source in (tmp_path / "folders", tmp_path / "links", tmp_path / "folders" / f"*.{ending}"):
        for find in (find_images, find_unlabelled_images):
            with pytest.raises(UnreadableFile, match=rf"x\.{ending} cannot be read as"):
                find(source)
    for pattern in (f"**x.{ending}", "**"):
        with pytest.raises(InvalidInput, match=r"must name files of one folder, with \* and not \*\*, got"):
            find_unlabelled_images(tmp_path / "folders" / pattern)


def table(**columns: Any) -> Any:
    return pa.table({"image": [RED, RED], "label": [0, 1]} | columns)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (table(label=[0, None]), r"p\.parquet row 1 must have a class index from 0, got 'None'"),
        (table(label=[0, -1]), r"p\.parquet row 1 must have a class index from 0, got '-1'"),
        (table(label=[0, 3]), r"p\.parquet row 1 must have a label in 0\.\.2, got 3"),
        (table(label=[0.0, 1.0]), r"p\.parquet row 0 must have a class index from 0, got '0\.0'"),
        (table().drop_columns("label"), r"p\.parquet must have a column of labels \(label, labels"),
        (table().drop_columns("image"), r"p\.parquet must have a column of images .*, got label"),
        (table(image=["a.png", "b.png"]), r"p\.parquet column 'image' must hold the bytes .* got string"),
        (table(image=[{"path": "a"}, {"path": "b"}]), r"column 'image' must hold the bytes of image files"),
        (
            table().rename_columns(["jpg", "target"]).append_column("png", pa.array([b"", b""])),
            "must have one of the columns jpg, png",
        ),
    ],
)
def test_parquet_files_that_leave_doubt_are_refused(tmp_path: Path, made: Any, said: str) -> None:
    pq.write_table(made, tmp_path / "p.parquet")
    with pytest.raises(UnreadableFile, match=said):
        find_images(tmp_path / "p.parquet", classes=["x", "y", "z"])


def test_a_parquet_file_that_is_cut_off_or_has_huge_groups_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.parquet"
    pq.write_table(table(), file)
    monkeypatch.setattr("pac_vision.images.archives.LARGEST_GROUP", 100)
    with pytest.raises(UnreadableFile, match=r"row groups of at most 0 MB, which a worker keeps"):
        find_images(file)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UnreadableFile, match=r"p\.parquet cannot be read as parquet"):
        find_images(file)


def named_rows(path: Path, names: list[str], labels: list[int]) -> Path:
    made = pa.table({"image": [RED] * len(labels), "label": labels})
    pq.write_table(made.replace_schema_metadata(hugging_face(names)), path)
    return path


def test_names_of_classes_come_with_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    file = named_rows(tmp_path / "p.parquet", ["cat", "dog"], [0, 1])
    assert find_images(file).names == ("cat", "dog")
    assert find_images(file).labels.tolist() == [0, 1]
    given = find_images(file, classes=["dog", "bee", "cat"])
    assert given.names == ("dog", "bee", "cat")
    assert given.labels.tolist() == [2, 0]
    named_rows(file, ["cat", "dog"], [0, 2])
    with pytest.raises(UnreadableFile, match=r"p\.parquet row 1 must have a label in 0\.\.1, got 2"):
        find_images(file, classes=["dog", "bee", "cat"])


def test_stored_names_are_found_among_wnids_or_their_names(tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"0": ["n02", "dog"], "1": ["n01", "cat"], "2": ["n03", "n02"]}))
    for names in (["cat", "dog"], ["n01", "dog"]):
        file = named_rows(tmp_path / "p.parquet", names, [0, 1, 1])
        assert find_images(file, classes=index).labels.tolist() == [1, 0, 0]
    for names, said in (
        (["cat", "n02"], "names a class 'n02' that must be one of .* got 2 of that name"),
        (
            ["cat", "ant", "bee"],
            "names a class 'ant' that must be .* begin with 'dog', 'cat', 'n02', got 0 of",
        ),
        (["cat", "n01"], "names class 1 twice, 'cat' and 'n01'"),
    ):
        with pytest.raises(UnreadableFile, match=rf"p\.parquet {said}"):
            find_images(named_rows(tmp_path / "p.parquet", names, [0, 1]), classes=index)


def test_each_parquet_file_is_read_by_its_own_names(tmp_path: Path) -> None:
    named_rows(tmp_path / "a.parquet", ["cat", "dog"], [0, 1])
    named_rows(tmp_path / "b.parquet", ["dog", "cat"], [0, 1])
    assert find_images(tmp_path).names == ("cat", "dog")
    assert find_images(tmp_path).labels.tolist() == [0, 1, 1, 0]
    assert find_images(tmp_path, classes=["dog", "cat"]).labels.tolist() == [1, 0, 0, 1]
    named_rows(tmp_path / "b.parquet", ["dog"], [0])
    assert find_images(tmp_path, classes=["dog", "cat"]).labels.tolist() == [1, 0, 0]
    with pytest.raises(UnreadableFile, match=r"b\.parquet must name the classes that a\.parquet names"):
        find_images(tmp_path)
    pq.write_table(table(), tmp_path / "b.parquet")
    for classes in (None, ["cat", "dog"]):
        with pytest.raises(UnreadableFile, match=r"b\.parquet must name the classes that a\.parquet names"):
            find_images(tmp_path, classes=classes)


def test_each_row_group_is_read_once(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_images(as_parquet(images, tmp_path / "a.parquet", rows=7))
    reader = found.read
    assert isinstance(reader, ParquetReader)
    groups: list[int] = []
    read = pq.ParquetFile.read_row_group

    def watched(self: Any, group: int, **options: Any) -> Any:
        groups.append(group)
        return read(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    for name in found.ids:
        found.image(name)
    assert groups == list(range(9))  # 60 rows, 7 in a group


def test_broken_images_have_their_path_in_every_layout(tmp_path: Path) -> None:
    cut = RED[: len(RED) // 2]
    tar = write_tar(tmp_path / "v.tar", [("a.png", cut), ("a.cls", b"1")])
    with pytest.raises(BrokenImage, match=r"v\.tar/a cannot be read as an image"):
        find_images(tar).image("v.tar/a")
    nothing = pa.array([None, cut], pa.binary())
    pq.write_table(pa.table({"img": nothing, "cls": [0, 1]}), tmp_path / "p.parquet")
    found = find_images(tmp_path / "p.parquet")
    with pytest.raises(BrokenImage, match=r"p\.parquet/0000000 cannot be read as an image: it has no bytes"):
        found.image(found.ids[0])
    with pytest.raises(BrokenImage, match=r"p\.parquet/0000001 cannot be read as an image"):
        found.image(found.ids[1])


def test_what_goes_to_the_workers_is_small(tmp_path: Path) -> None:
    members = [m for i in range(500) for m in ((f"val_{i:08d}.png", RED), (f"val_{i:08d}.cls", b"1"))]
    found = find_images(write_tar(tmp_path / "v.tar", members))
    assert len(pickle.dumps(found)) < 500 * 250
    parquet = pa.table({"image": [RED] * 500, "label": [1] * 500})
    pq.write_table(parquet, tmp_path / "p.parquet", row_group_size=100)
    assert len(pickle.dumps(find_images(tmp_path / "p.parquet"))) < 500 * 250


def test_images_to_serve_may_lie_anywhere(tmp_path: Path) -> None:
    for name in ("a.png", "d/e/b.PNG", ".hidden/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(RED)
    (tmp_path / "d" / "notes.txt").write_text("")
    (tmp_path / "d" / "up").symlink_to(tmp_path)
    found = find_unlabelled_images(tmp_path)
    assert found.ids.tolist() == ["a.png", "d/e/b.PNG"]
    assert found.skipped == ("d/notes.txt",)
    assert found.image("d/e/b.PNG").size == (6, 5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableFile, match="holds no images"):
        find_unlabelled_images(tmp_path / "empty")
