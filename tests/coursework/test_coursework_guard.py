"""What the text of an answer may not contain, and that answers of all kinds may be given."""

import pytest

from pa_tutorial.coursework.assignment import adapters_file, assignment
from pa_tutorial.coursework.grading import objection_to
from pa_tutorial.coursework.guard import objection, own_modules
from pa_tutorial.exercises import EXERCISES

WAYS_AROUND = {
    "the solution": "from pa_tutorial.exercises import EXERCISES",
    "the checks, by another way": "from pa_tutorial import checks",
    "the system, through another module": "import torch\n\ntorch.os.listdir()",
    "a module that another imported": "from torch import os",
    "the same, imported": "from random import _os",
    "the same, of ours": "from pa_tutorial.distributed.ranks import pickle",
    "the same, in a pattern": "import torch\n\nmatch torch:\n    case type(os=x):\n        pass",
    "the package by its name": "import pa_tutorial.engine\n\npa_tutorial.exercises",
    "attributes by text": "import torch\n\ngetattr(torch, 'o' + 's')",
    "text as code": "exec('import os')",
    "the same, in a type": "from typing import get_type_hints",
    "a module below one that may be imported": "import torch.utils.cpp_extension",
    "an inside": "().__class__.__base__.__subclasses__()",
    "what stands in every module": "__loader__.get_data('/etc/passwd')",
    "a changed library": "import torch\n\ntorch.equal = lambda *given: True",
    "a changed class of a library": "from torch import Tensor\n\nTensor.numpy = None",
    "files": "open('/etc/passwd')",
    "files of a library": "import numpy as np\n\nnp.zeros(1).tofile('answers.py')",
    "who called": "def f():\n    yield\n\n\nf().gi_frame.f_back",
    "another encoding": "# coding: utf-7\n# +AAo-import os",
    "a syntax error": "def f(:",
    "a null byte": "x = 1\0",
    "half a character": "x = '\ud800'",
    "too many signs": "x = " + "-" * 100_000 + "1",
}
USUAL = [
    "from __future__ import annotations",
    "import torch.nn.functional as F\n\nF.softmax",
    "class A:\n    def __init__(self):\n        self._m = 0\n        self._m.x = 1",
    "import numpy as np\n\nx = np.zeros(3)\nx[0] = np.linalg.norm(x)",
    "if __name__ == '__main__':\n    print(__doc__)",
]


@pytest.mark.parametrize("what", WAYS_AROUND)
def test_ways_around_are_refused_with_the_line(what: str) -> None:
    assert objection(WAYS_AROUND[what]).startswith("line "), what


def test_what_is_usual_and_what_is_only_wrong_is_not_refused() -> None:
    wrong = [e.wrong_source(version) for e in EXERCISES.values() for version in e.wrong]
    assert {objection(text) for text in (*USUAL, *wrong)} == {""}
    window = assignment("sliding_window")
    assert objection_to({**window.solution, "adapters.py": adapters_file(window)}) == ""


def test_a_file_named_like_a_module_of_python_does_not_let_it_in() -> None:
    names = ["answers.py", "helping.py", "os.py", "pa_tutorial.py", "numpy.py", "pytest.py"]
    assert own_modules(names) == {"answers", "helping"}
    assert "imports os" in objection_to({"os.py": "", "answers.py": "import os"})
