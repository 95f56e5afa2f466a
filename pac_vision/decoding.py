"""From the bytes of a file to an RGB image."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.Image import Transpose

from pac_core import UnreadableFile

RULES = "upright by EXIF, the upper 8 of 16 bits, no transparency, no colour profile"
"""How files become pixels, for the digest of every model: by other rules it would see other images."""
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
_ORIENTATION = 0x0112  # EXIF's tag; 1 is upright
_UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}


class BrokenImage(UnreadableFile):
    """An image was read but cannot be decoded; a file that cannot be read at all is no `BrokenImage`."""


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """The image in a file, upright and as RGB; of an animation the first frame.

    Orientation by EXIF is applied. Of 16 bits a channel the upper 8 are taken, whatever the largest value is.
    Transparency and colour profiles are ignored; grey, black and white, palettes, CMYK and YCbCr become RGB
    by Pillow's own rules. 32-bit integers, floats and Lab are refused by name: their white is not known.
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
            eight = _to_8_bits(image)
            # Pillow warns of a palette whose transparency it would have to drop.
            whole = eight.convert("RGBA") if eight.mode in ("P", "PA", "RGBa", "La") else eight
            return _upright(image, whole.convert("RGB"))
    except MemoryError:  # the machine's failure, not the image's
        raise
    except Exception as error:  # the decoders raise a dozen kinds for a damaged file
        reason = "it is no image that Pillow knows" if isinstance(error, UnidentifiedImageError) else error
        raise BrokenImage(f"{path} cannot be read as an image: {reason}") from None


def _to_8_bits(image: Image.Image) -> Image.Image:
    """The image, or the upper 8 bits of one with 16, as Pillow itself takes them of 16-bit colours."""
    # 16-bit grey is "I" in PGM files, and in PNG files for Pillow before 11.3.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode not in _MODES:
        known = "8 or 16 bits that are grey, RGB, CMYK or YCbCr"
        raise ValueError(f"its channels must have {known}, got mode {image.mode}: convert it beforehand")
    return image


def _upright(image: Image.Image, pixels: Image.Image) -> Image.Image:
    """The pixels turned as the image's EXIF data say; data that cannot be read say nothing."""
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data beside whole pixels
        turn = None
    return pixels if turn is None else pixels.transpose(turn)
