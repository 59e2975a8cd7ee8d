"""Printing where the output isn't UTF-8, as on Windows with `> file`."""

import io
import sys


def print_anything() -> None:
    """From now on, a character that standard output can't encode is printed as \\u2192, and so on.

    Without this, Python raises UnicodeEncodeError. Every command of ours calls it first.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # it may have been replaced, as in IPython
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does from the start
