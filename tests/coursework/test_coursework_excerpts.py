"""Answers in unusual styles: what is cut out of a notebook runs as it did there."""

import pytest

from pa_tutorial.coursework.excerpts import definitions, excerpt

# Cells; each defines `answer`, and answer() is 7.
STYLES = {
    "a helper below": ["def answer():\n    return helper()", "def helper():\n    return 7"],
    "defined again": ["def answer():\n    return 0", "def answer():\n    return 7"],
    "decorated afterwards": [
        "from functools import cache\ndef answer():\n    return 7",
        "answer = cache(answer)",
    ],
    "a lambda": ["answer = lambda: seven", "seven: int = 7"],
    "import *": ["from math import *\nimport math", "def answer():\n    return floor(7.5)"],
    "a global": ["n = 6", "def answer():\n    global n\n    n += 1\n    return n"],
    "counted up": ["n = 6\nn += 1", "def answer():\n    return n"],
    "a table, filled": [
        "table = {}\ntable['a'] = 3",
        "for i in range(2):\n    table[i] = 2",
        "def answer():\n    return sum(table.values())",
    ],
    "only if there is": [
        "try:\n    import no_such_module as math\nexcept ImportError:\n    import math",
        "def answer():\n    return math.floor(7.5)",
    ],
    "registered": [
        "from functools import singledispatch\n@singledispatch\ndef f(x):\n    return 0",
        "@f.register\ndef _(x: int):\n    return 7\n\n@f.register\ndef _(x: str):\n    return 1",
        "def answer():\n    return f(1)",
    ],
    "one name twice": [
        "seven = 7",
        "def answer():\n    other = lambda seven: seven\n    return other(seven)",
    ],
    "a walrus": ["(seven := 7)", "def answer():\n    return seven"],
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
    "a long %": ["def answer():\n    return (\n        17\n        % 10\n    )"],
    "text like magic": ['TEXT = """\n%time\n"""\ndef answer():\n    return len(TEXT)'],
    "magic": ["%matplotlib inline\n!ls\nfiles = !ls\nlen?\ndef answer():\n    return 7"],
    "a cell's magic": ["%%time\ndef answer():\n    return 7"],
    "another language": ["def answer():\n    return 7", "%%writefile x.py\nanswer = 0"],
    "an error elsewhere": ["def answer(:", "x = '\ud800'", "def answer():\n    return 7"],
    "lines of Windows": ["\ufeffs = 7\r\ndef answer():\r\n    return s\r\n"],
    "a form feed": ["x = '\x0c\u2028'\ny = 1\ndef answer():\n    return 7"],
    "other letters": ["größe = 7", "def answer():\n    return f'{größe}' and größe"],
    "two modules, one name": [
        "import collections.abc\nimport collections",
        "def answer():\n    return isinstance(7, collections.abc.Hashable) * 7",
    ],
}


@pytest.mark.parametrize("style", STYLES)
def test_what_is_cut_out_runs(style: str) -> None:
    space: dict = {"__name__": __name__}
    exec(excerpt(["answer"], definitions(STYLES[style])), space)
    assert space["answer"]() == 7, excerpt(["answer"], definitions(STYLES[style]))


def test_what_is_not_needed_is_not_cut_out() -> None:
    cells = ["import os\nm = os.getpid()", "def f(x):\n    m = x\n    return m"]
    assert excerpt(["f"], definitions(cells)) == cells[1]
    assert excerpt(["g"], definitions(cells)) == ""
    twice = ["from math import log", "from cmath import log", "def f(x):\n    return log(x)"]
    assert "from math" not in excerpt(["f"], definitions(twice))


@pytest.mark.parametrize("cell", ["x = 1\0", "-" * 100_000 + "1", "'\ud800'"])
def test_a_cell_that_cannot_be_read_defines_nothing(cell: str) -> None:
    assert definitions([cell]) == {}
