"""Printing where the output isn't UTF-8, as on Windows with `> file`."""

import io
import sys


def print_anything() -> None:
    """From now on, a character that standard output can't encode is printed as \\u2192, and so on.

    Without this, Python raises UnicodeEncodeError. Every command of ours calls it first.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # it may have been replaced, as in IPython
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does from the start


def printable(text: str) -> str:
    """A text of anybody's without control characters, and as UTF-8 can have it: only line breaks
    stay."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)
