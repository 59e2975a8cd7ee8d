"""Answers in unusual styles: what is cut out of a notebook runs as it did there."""

import pytest

from pa_tutorial.coursework.excerpts import excerpt, statements

# Cells; each defines `answer`, and answer() is 7.
STYLES = {
    "a helper below": ["def answer():\n    return helper()", "def helper():\n    return 7"],
    "defined again": ["def answer():\n    return 0", "def answer():\n    return 7"],
    "decorated afterwards": [
        "from functools import cache\ndef answer():\n    return 7",
        "answer = cache(answer)",
    ],
    "a lambda": ["answer = lambda: seven", "seven: int = 7"],
    "a global": ["n = 6", "def answer():\n    global n\n    n += 1\n    return n"],
    "a table, filled": [
        "table = {}\ntable['a'] = 3",
        "for i in range(2):\n    table[i] = 2",
        "def answer():\n    return sum(table.values())",
    ],
    "a class": [
        "base = 3",
        "class A:\n    base = base\n    def __call__(self):\n        return self.base + base + 1",
        "answer = A()",
    ],
    "a dataclass": [
        "from __future__ import annotations",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    n: Unknown = 7",
        "def answer() -> Later:\n    return A().n",
        "class Later: ...",
    ],
    "import *": ["from math import *", "def answer():\n    return floor(7.5)"],
    "a long %": ["def answer():\n    return (\n        17\n        % 10\n    )"],
    "magic": ["%matplotlib inline\n!ls\nlen?\ndef answer():\n    return 7"],
    "a cell's magic": ["%%time\ndef answer():\n    return 7"],
    "an error elsewhere": ["def answer(:", "x = '\ud800'", "def answer():\n    return 7"],
    "too deep elsewhere": ["-" * 100_000 + "1", "x = 1\0", "def answer():\n    return 7"],
    "lines of Windows": ["\ufeffs = 7\r\ndef answer():\r\n    return s\r\n"],
}


@pytest.mark.parametrize("style", STYLES)
def test_what_is_cut_out_runs(style: str) -> None:
    space: dict = {"__name__": __name__}
    exec(excerpt(["answer"], statements(STYLES[style])), space)
    assert space["answer"]() == 7, excerpt(["answer"], statements(STYLES[style]))


def test_what_is_not_needed_is_not_cut_out() -> None:
    cells = [
        "import os\n@os.f\ndef g(): ...\nm = os.getpid()\nm.x = 1",
        "def f(m):\n    return os or m",
    ]
    assert excerpt(["f"], statements(cells)) == f"import os\n\n\n{cells[1]}"
    assert excerpt(["h"], statements(cells)) == ""
