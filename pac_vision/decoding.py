"""From the bytes of a file to an RGB image."""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from pac_core import UnreadableFile


class BrokenImage(UnreadableFile):
    """An image was read but cannot be decoded; a file that cannot be read at all is no `BrokenImage`."""


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """The image in a file, as RGB; of an animation the first frame.

    A file that is damaged or cut off is refused with its path: a unit is never left out.
    """
    return decode(read_bytes(path), path)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a file."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read as an image: {error.strerror}") from None


def decode(content: bytes, path: str | os.PathLike[str]) -> Image.Image:
    """The image of these bytes, as RGB; `path` says in a refusal where they came from."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"its channels must have 8 bits, got mode {image.mode}")
            # Pillow warns of a palette whose transparency it would have to drop.
            whole = image.convert("RGBA") if image.mode == "P" else image
            return whole.convert("RGB")
    except MemoryError:  # the machine's failure, not the image's
        raise
    except Exception as error:  # the decoders raise a dozen kinds for a damaged file
        reason = "it is no image that Pillow knows" if isinstance(error, UnidentifiedImageError) else error
        raise BrokenImage(f"{path} cannot be read as an image: {reason}") from None
