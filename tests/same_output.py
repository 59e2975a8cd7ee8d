"""Whether a notebook or a figure comes out as committed.

Byte for byte on Linux on x86-64, where it was made. Elsewhere a last digit may round another way,
and an edge may be a shade lighter: that is no defect, and the summary of the tests says where.
"""

import io
import platform
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import zip_longest

import numpy as np
from PIL import Image

NUMBER = re.compile(r"(?<![\w.])(-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?)(?![\w.])")
# In an SVG: names that are made of what they stand for, and pictures in it.
MADE = re.compile(r"\b[a-z][0-9a-f]{10}\b|base64,[\w+/=\s]+")
MOST_SHADES = 16  # of 255, in which a pixel may differ
MOST_PIXELS = 1e-3  # part of a picture that may differ more

Piece = str | bytes  # a text, or a picture in a file's bytes


def made_here() -> bool:
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def require_same(
    new: Sequence[Piece], old: Sequence[Piece], place: str, record_property: Callable
) -> None:
    """Fail if a piece of an output differs more than a machine may; if less, note the place."""
    for one, other in zip_longest(new, old):
        pictures = isinstance(one, bytes) and isinstance(other, bytes)
        if one == other or (pictures and np.array_equal(pixels(one), pixels(other))):
            continue  # pictures by their pixels: libraries compress them differently
        close = close_pictures if pictures else close_texts
        may_differ = not made_here() and type(one) is type(other) and close(one, other)
        assert may_differ, f"not what is committed: {place}"
        record_property("rounded", place)


def pixels(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGBA"))


def close_pictures(new: bytes, old: bytes) -> bool:
    one, other = pixels(new).astype(int), pixels(old).astype(int)
    if one.shape != other.shape:
        return False
    return bool((abs(one - other) > MOST_SHADES).any(axis=-1).mean() <= MOST_PIXELS)


def close_texts(new: str, old: str) -> bool:
    """The same words, and numbers that differ by one in the last digit that both show."""
    one, other = (NUMBER.split(" ".join(MADE.sub("", text).split())) for text in (new, old))
    return one[::2] == other[::2] and all(map(close_numbers, one[1::2], other[1::2]))


def close_numbers(new: str, old: str) -> bool:
    """Whole numbers are counted, not rounded."""
    one, other = (Decimal(text.replace(",", "")) for text in (new, old))
    last = max(one.as_tuple().exponent, other.as_tuple().exponent)
    return one == other or (last < 0 and abs(one - other) <= Decimal(1).scaleb(last))
