"""The layouts images come in, for the tests: tar shards and parquet files of images in folders."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pac_vision.images import Images


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """A plain tar with these members, in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


def as_tars(images: Images, folder: Path, shards: int = 3) -> Path:
    """The images as webdataset shards: a member with the pixels and one with the label."""
    for shard in range(shards):
        members = []
        for name, label in list(zip(images.ids, images.labels, strict=True))[shard::shards]:
            stem = str(name).rpartition(".")[0]
            members += [(str(name), (Path(images.folder) / name).read_bytes())]
            members += [(f"{stem}.cls", str(label).encode())]
        write_tar(folder / f"part-{shard}.tar", members)
    return folder


def as_parquet(images: Images, path: Path, *, plain: bool = False, rows: int = 7) -> Path:
    """The images as Hugging Face stores them, or as plain bytes, a few rows in a group."""
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = [(Path(images.folder) / name).read_bytes() for name in images.ids]
    pairs = zip(contents, images.ids, strict=True)
    cells = contents if plain else [{"bytes": content, "path": str(name)} for content, name in pairs]
    pq.write_table(pa.table({"image": cells, "label": images.labels}), path, row_group_size=rows)
    return path
