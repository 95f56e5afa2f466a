"""Draws the figures of docs/gallery.md, with the code that stands there: python docs/tools/gallery.py."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1]
SHOWN = DOCS / "images"
WIDEST = 1200
COLOURS = 64


def shrink(source: Path, target: Path) -> None:
    """A figure of few colours and at most so many pixels across, to be kept in the repository."""
    with Image.open(source) as figure:
        image = figure.convert("RGB")
    if image.width > WIDEST:
        image = image.resize((WIDEST, round(image.height * WIDEST / image.width)), Image.Resampling.LANCZOS)
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


def main() -> None:
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names: dict[str, object] = {}
        for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S):
            exec(code, names)
        for name in re.findall(r"\(images/(\w+\.png)\)", page):
            shrink(Path(name), SHOWN / name)
            print(f"{name}: {(SHOWN / name).stat().st_size / 1000:.0f} KB")
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
