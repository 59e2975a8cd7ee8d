"""Whether a notebook's output or a figure is the one that is committed.

Byte for byte on Linux on x86-64, where it was made. Elsewhere decimals may round differently and
the edges of a picture may be a shade lighter, so there we compare neither.
"""

import io
import platform
import re
from collections.abc import Sequence
from itertools import zip_longest

from PIL import Image

DECIMAL = re.compile(r"-?\d+\.\d+(e[-+]\d+)?")
# In an SVG: names derived from the content, and embedded pictures.
DERIVED = re.compile(r"\b[a-z][0-9a-f]{10}\b|base64,[\w+/=\s]+")

Piece = str | bytes | None  # a text, a picture's file, or nothing


def made_here() -> bool:
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def require_same(new: Sequence[Piece], old: Sequence[Piece], place: str) -> None:
    """Fail if an output isn't the committed one; elsewhere, if more than rounding differs."""
    for one, other in zip_longest(new, old):
        seen = exact if made_here() else rough
        assert seen(one) == seen(other), f"not as committed: {place}"


def exact(piece: Piece) -> object:
    """A picture counts by its pixels: libraries compress them differently."""
    if not isinstance(piece, bytes):
        return piece
    image = Image.open(io.BytesIO(piece)).convert("RGBA")
    return image.size, image.tobytes()


def rough(piece: Piece) -> object:
    """The words and whole numbers of a text, or the size of a picture."""
    if isinstance(piece, bytes):
        return Image.open(io.BytesIO(piece)).size
    return piece and DECIMAL.sub("", DERIVED.sub("", piece)).split()
