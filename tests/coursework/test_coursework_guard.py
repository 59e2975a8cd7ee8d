"""What the text of an answer may not contain, and that answers of all kinds may be given."""

import pytest

from pa_tutorial.coursework.assignment import adapters_file, assignment, assignment_names
from pa_tutorial.coursework.grading import objection_to
from pa_tutorial.coursework.guard import objection, own_modules
from pa_tutorial.exercises import EXERCISES

WAYS_AROUND = {
    "a module that another imported": "from torch import os",
    "the same, under a name with _": "import random\n\nrandom._os",
    "the same, imported": "from random import _os",
    "the same, of ours": "from pa_tutorial.distributed.ranks import pickle",
    "the same, in a pattern": "import torch\n\nmatch torch:\n    case type(os=x):\n        pass",
    "the package by its name": "import pa_tutorial.engine\n\npa_tutorial.exercises",
    "attributes by text": "from operator import attrgetter",
    "text as code": "from typing import get_type_hints",
    "text as code, of ours": "from pa_tutorial.kernels.changed import changed",
    "a module below one that may be imported": "import torch.utils.cpp_extension",
    "what stands in every module": "__loader__.get_data('/etc/passwd')",
    "a changed library": "import torch\n\ntorch.equal = lambda *given: True",
    "a changed class of a library": "from torch import Tensor\n\nTensor.numpy = None",
    "files": "import numpy as np\n\nnp.zeros(1).tofile('answers.py')",
    "who called": "def f():\n    yield\n\n\nf().gi_frame.f_back",
    "another encoding": "# coding: utf-7\n# +AAo-import os",
    "a null byte": "x = 1\0",
    "half a character": "x = '\ud800'",
    "too many signs": "x = " + "-" * 100_000 + "1",
}


@pytest.mark.parametrize("what", WAYS_AROUND)
def test_ways_around_are_refused_with_the_line(what: str) -> None:
    assert objection(WAYS_AROUND[what]).startswith("line "), what


@pytest.mark.parametrize("name", assignment_names())
def test_our_own_answers_are_not_refused(name: str) -> None:
    one = assignment(name)
    for texts in (one.starter, one.solution):
        python = {file: text for file, text in texts.items() if file.endswith(".py")}
        assert objection_to({**python, "adapters.py": adapters_file(one)}) == ""


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_wrong_answers_are_not_refused(exercise) -> None:
    assert [objection(exercise.wrong_source(wrong)) for wrong in exercise.wrong if wrong] == [
        "" for _ in exercise.wrong
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from __future__ import annotations",
        "import torch.nn.functional as F\n\nF.softmax",
        "class A:\n    def __init__(self):\n        self._m = 0\n        self._m.x = 1",
        "import numpy as np\n\nx = np.zeros(3)\nx[0] = np.linalg.norm(x)",
        "if __name__ == '__main__':\n    print(__doc__)",
    ],
)
def test_what_is_usual_is_not_refused(text: str) -> None:
    assert objection(text) == ""


def test_a_file_named_like_a_module_of_python_does_not_let_it_in() -> None:
    names = ["answers.py", "helping.py", "os.py", "pa_tutorial.py", "numpy.py", "pytest.py"]
    assert own_modules(names) == {"answers", "helping"}
    assert "imports os" in objection_to({"os.py": "", "answers.py": "import os"})
