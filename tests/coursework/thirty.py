"""Some thirty submissions of one assignment, right and wrong in unusual ways.

python -m tests.coursework.thirty run    what attempt says of each in Jupyter itself
"""

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from pa_tutorial.exercises import exercises_of, named
from pa_tutorial.exercises.needs import needs_of
from pa_tutorial.printing import print_anything

NAME = "05_online_softmax"
BLANK, EXERCISE = "merge", "merge_outputs"
START = f"{needs_of(exercises_of(NAME))}\n\nfrom pa_tutorial.exercises import attempt"
MERGE, OUTPUTS = named(BLANK).source, named(EXERCISE).source
SIGNATURE = "def merge_outputs(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:"
LINE = "    m = lses.amax(dim=0)\n"
WRONG = OUTPUTS.replace("lses.amax(dim=0)", "0 * lses[-1].nan_to_num()")


def tried(name: str) -> str:
    return f'{name} = attempt("{name}", {name})'


def changed(line: str) -> str:
    """The right answer with another line after the maximum."""
    return OUTPUTS.replace(LINE, f"{LINE}    {line}\n")


PLAIN = f"{START}\n\n\n{MERGE}\n\n{OUTPUTS}"
TRY = tried(EXERCISE)


@dataclass(frozen=True)
class Handed:
    """What a student hands in.

    right  the tasks that are right
    says   a part of the feedback
    cells  of a notebook; or else `files`, name -> text
    file   the name of the notebook
    """

    right: frozenset[str]
    says: str = ""
    cells: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    file: str = "05_online_softmax.ipynb"


def right(*cells: str, **words: object) -> Handed:
    return Handed(frozenset({EXERCISE}), "", (START, *cells), **words)


def wrong(says: str, *cells: str, **words: object) -> Handed:
    return Handed(frozenset(), says, (START, *cells), **words)


HELPER = "def weights_of(lses):\n    return torch.exp(lses - lses.amax(dim=0))\n"
USES = OUTPUTS.replace("torch.exp(lses - m)", "weights_of(lses)")
LOOPS = changed("while True: pass")

THIRTY = {
    "a comment with a question mark": right(f"{OUTPUTS}\n# is this right?", TRY),
    "timeit": right(f"{OUTPUTS}\n%timeit -n 1 -r 1 1 + 1", TRY),
    "a command": right(f"!ls\n{OUTPUTS}", TRY),
    "time": right(f"%%time\n{OUTPUTS}", TRY),
    "a table filled in a loop": right(
        "CEIL = []\nfor n in range(3):\n    CEIL.append(n)", changed("m = m + CEIL[0]"), TRY
    ),
    "a tensor filled in place": right(
        "ones = torch.zeros(())\nones.fill_(1)", changed("m = m * ones"), TRY
    ),
    "a name used again later": right("zero = 0", changed("m = m + zero"), TRY, "zero = 'text'"),
    "a helper defined anew later": right(HELPER, USES, TRY, HELPER.replace("- lses", "+ lses")),
    "exec": right(f"exec({OUTPUTS!r})", TRY),
    "inline figures": right(f"%matplotlib inline\n%autosave 60\n{OUTPUTS}", TRY),
    "a loop that runs": right(
        "import asyncio, sys\nx = 'ü'.encode(sys.stdout.encoding)\n"
        "task = asyncio.create_task(asyncio.sleep(0, 0))",
        "zero = await task",
        changed("m = m + zero"),
        TRY,
    ),
    "王": right(OUTPUTS, TRY, file="王.ipynb"),
    "one folder too deep": right(OUTPUTS, TRY, file="homework/week 3/mine.ipynb"),
    "a copy's name": Handed(frozenset({BLANK, EXERCISE}), files=(("answers (1).py", PLAIN),)),
    "a syntax error": wrong(
        "SyntaxError in cell 2, line 16", OUTPUTS.replace("m = lses", "m == = lses"), TRY
    ),
    "an empty notebook": Handed(frozenset(), "has no code", ("",)),
    "the wrong notebook": wrong(
        "it answers num_blocks",
        "def num_blocks(num_tokens: int, block_size: int) -> int:\n    return 3",
        tried("num_blocks"),
    ),
    "no bytes": Handed(frozenset(), "is empty", files=(("05_online_softmax.ipynb", ""),)),
    "a loop without end": wrong(
        "stopped after 20 s in cell 2, line 17: it does not end", LOOPS, TRY
    ),
    "an object that can be called": right(
        "class Merge:\n    def __call__(self, outs, lses):\n        return right(outs, lses)",
        OUTPUTS.replace("def merge_outputs", "def right"),
        f"merge_outputs = Merge()\n{TRY}",
    ),
    "a cell that fails before": right("1 / 0", "undefined", OUTPUTS, TRY),
    "await": right(
        "import asyncio\nzero = await asyncio.sleep(0, 0)", changed("m = m + zero"), TRY
    ),
    "a file written by a cell": right(
        f"%%writefile own.py\nimport torch\n{HELPER}", "from own import weights_of", USES, TRY
    ),
    "right at the second try": right(WRONG, TRY, OUTPUTS, TRY),
    "a counter": right("calls = 0", changed("global calls; calls += 1"), TRY, "assert calls > 0"),
    "attempted twice": wrong("worst against", WRONG, TRY, TRY),
    "right, then wrong": wrong("worst against", OUTPUTS, TRY, WRONG, TRY),
    "a helper that comes too late": wrong("weights_of", USES, TRY, HELPER),
    "no attempt": wrong(
        "the line with `attempt` below the answer is missing in 05_online_softmax.ipynb", OUTPUTS
    ),
    "exit": wrong("SystemExit", changed("raise SystemExit"), TRY),
    "an argument changed": wrong(
        "changed one of its arguments", changed("outs *= 1; outs[:] = 0"), TRY
    ),
}


def write(handed: Handed, folder: Path) -> None:
    book = nbformat.writes(new_notebook(cells=[*map(new_code_cell, handed.cells)]))
    for name, text in handed.files or ((handed.file, book),):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def right_in_jupyter(handed: Handed, folder: Path) -> set[str]:
    """The tasks of which the notebook says at last that they are right. A cell may fail."""
    write(handed, folder)
    book = nbformat.read(folder / handed.file, as_version=4)
    options = {"allow_errors": True, "timeout": 20, "interrupt_on_timeout": True}
    client = NotebookClient(book, resources={"metadata": {"path": str(folder)}}, **options)
    said = {}
    for cell in client.execute().cells:
        text = "\n".join(
            str(o.get("text", o.get("data", {}).get("text/plain"))) for o in cell.outputs
        )
        verdicts = r"^(\w+): (?:(right in all)|not |(\d+) of (\d+) cases)"
        for name, is_right, passed, total in re.findall(verdicts, text, re.MULTILINE):
            said[name] = bool(is_right or passed) and passed == total
    return {name for name, is_right in said.items() if is_right}


def main() -> None:
    for name, handed in THIRTY.items():
        if handed.cells:
            with TemporaryDirectory() as place:
                found = right_in_jupyter(handed, Path(place))
            same = "" if found == handed.right else f", not {', '.join(handed.right)}"
            print(f"{name}: right: {', '.join(sorted(found)) or 'nothing'}{same}", flush=True)


if __name__ == "__main__":
    print_anything()
    main()
