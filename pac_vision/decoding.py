"""From the bytes of a file to an RGB image."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pac_core import UnreadableFile

RULES = "upright by EXIF, the upper 8 of 16 bits, no transparency, no colour profile"
"""How files become pixels. It enters the digest of every model: other rules would show it other images."""
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)


class BrokenImage(UnreadableFile):
    """An image that was read but cannot be decoded; a file that cannot be read at all is no `BrokenImage`."""


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """Read the image in a file, upright and as RGB; of an animation the first frame.

    Orientation by EXIF is applied. Of 16 bits per channel the upper 8 are taken, whatever the largest value.
    Transparency and colour profiles are ignored; grey, black and white, palettes, CMYK and YCbCr become RGB
    by Pillow's own rules. 32-bit integers, floats and Lab are refused by name: their white is not known.
    A damaged or truncated file is refused with its path: no unit is ever left out.
    """
    return decode(read_bytes(path), path)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file, or refuse it with its path."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read as an image: {error.strerror}") from None


def decode(content: bytes, path: str | os.PathLike[str]) -> Image.Image:
    """Decode an image as RGB; `path` says in a refusal where the bytes came from."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            _turn_upright(image)
            eight = _to_8_bits(image)
            # Pillow warns of a palette whose transparency it would have to drop.
            whole = eight.convert("RGBA") if eight.mode in ("P", "PA", "RGBa", "La") else eight
            return whole.convert("RGB")
    except MemoryError:  # the machine's failure, not the image's
        raise
    except Exception as error:  # the decoders raise a dozen kinds for a damaged file
        reason = "it is no image that Pillow knows" if isinstance(error, UnidentifiedImageError) else error
        raise BrokenImage(f"{path} cannot be read as an image: {reason}") from None


def _turn_upright(image: Image.Image) -> None:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # damaged EXIF data beside intact pixels say nothing
        pass


def _to_8_bits(image: Image.Image) -> Image.Image:
    """The image, or the upper 8 bits of one with 16, as Pillow itself takes them of 16-bit colours."""
    # 16-bit grey is "I" in PGM files, and in PNG files for Pillow before 11.3.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode not in _MODES:
        known = "8 or 16 bits that are grey, RGB, CMYK or YCbCr"
        raise ValueError(f"its channels must have {known}, got mode {image.mode}: convert it beforehand")
    return image
