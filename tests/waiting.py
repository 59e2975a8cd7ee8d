"""How long a reader waits: `python -m tests.waiting`, in seconds of wall clock.

    python -m tests.waiting --than ../before       # this tree and another, taking turns
    python -m tests.waiting verdicts

Every measurement is a fresh process. Of what is measured several times, the median is told.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from pa_tutorial.exercises.my_kernel import PLACE
from pa_tutorial.printing import print_anything

ROOT = Path(__file__).parent.parent
STAGES = ("full_recompute", "kv_cache", "paged_gather", "online_softmax", "paged_online")
KERNELS = ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2")

# Scripts, because the other tree may not have this file. Each prints {what: seconds} at the end.
VERDICTS = """
import json, time
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.blank_verdict import judged
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.reader_files import PLAIN
from tests.exercises.blank_cells import function_of

def seconds(blank):
    around = {} if blank.file in PLAIN else vars(BACKENDS[blank.file].namespace())
    names = {name: value for name, value in around.items() if not name.startswith("__")}
    function = function_of(blank, blank.source, **names)
    start = time.perf_counter()
    assert judged(blank, function)[0] == ""
    return time.perf_counter() - start

print(json.dumps({name: seconds(blank) for name, blank in all_blanks().items()}))
"""
CHECK = """
import json, sys, time
from pa_tutorial.checks import check

name, how = sys.argv[1:]
start = time.perf_counter()
check(name, short=how == "short")
print(json.dumps({f"{how} check of {name}": time.perf_counter() - start}))
"""
NOTEBOOK = """
import json, sys, time
from pathlib import Path
import nbformat
from nbclient import NotebookClient
from pa_tutorial.exercises import exercises_of
from pa_tutorial.exercises.blank import Blank

path, is_answered = Path(sys.argv[1]), sys.argv[2] == "answered"
notebook = nbformat.read(path, as_version=4)
for one in exercises_of(path.stem) if is_answered else ():
    mark = {"blank" if isinstance(one, Blank) else "exercise": one.name, "part": "stub"}
    (cell,) = (cell for cell in notebook.cells if mark.items() <= cell.metadata.items())
    attempt = f'\\n\\n\\n{one.function} = attempt("{one.name}", {one.function})'
    cell.source = one.source + (attempt if isinstance(one, Blank) else "")
times, first = [], next(cell for cell in notebook.cells if cell.cell_type == "code")
client = NotebookClient(
    notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}},
    on_cell_executed=lambda cell, **_: times.append(time.perf_counter()),
)
start = time.perf_counter()
with client.setup_kernel():
    ready = time.perf_counter()
    for index, cell in enumerate(notebook.cells):
        client.execute_cell(cell, index)
        if cell is first:
            opened = time.perf_counter() - ready
print(json.dumps({f"{path.stem}, {sys.argv[2]}": time.perf_counter() - start,
                  f"{path.stem}, its first cell": opened}))
"""


def measured(tree: Path, code: str, *arguments: str) -> dict[str, float]:
    """What a script prints that runs in a tree."""
    env = {**os.environ, "PYTHONPATH": str(tree), PLACE: "nowhere"}
    with TemporaryDirectory() as folder:  # a kernel must be in a file
        script = Path(folder, "measured.py")
        script.write_text(code, encoding="utf-8")
        command = [sys.executable, str(script), *arguments]
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arguments} in {tree}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def of_verdicts(tree: Path) -> dict[str, float]:
    seconds = measured(tree, VERDICTS).values()
    return {"a verdict, the median blank": median(seconds), "the slowest verdict": max(seconds)}


def of_notebooks(tree: Path, how: str) -> Iterator[dict[str, float]]:
    for path in sorted((tree / "notebooks").glob("*.ipynb")):
        yield measured(tree, NOTEBOOK, str(path), how)


def of(group: str, tree: Path) -> Iterator[dict[str, float]]:
    """The measurements of a group."""
    match group:
        case "verdicts":
            yield of_verdicts(tree)
        case "short":
            yield from (measured(tree, CHECK, kernel, "short") for kernel in KERNELS)
        case "checks":
            yield from (measured(tree, CHECK, name, "whole") for name in (*STAGES, "engine", "cpu"))
        case "notebooks":
            yield from of_notebooks(tree, "as they are")
            yield from of_notebooks(tree, "answered")


GROUPS = ("verdicts", "short", "checks", "notebooks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--than", type=Path, help="another clone, measured in turn with this one")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    trees = [ROOT, *([args.than.resolve()] if args.than else [])]
    for group in args.groups or GROUPS:
        found: dict[str, dict[Path, list[float]]] = defaultdict(lambda: defaultdict(list))
        for _ in range(args.rounds):
            for both in zip(*(of(group, tree) for tree in trees), strict=True):
                for tree, seconds in zip(trees, both, strict=True):
                    for what, one in seconds.items():
                        found[what][tree].append(one)
        for what, by_tree in found.items():
            print(*(f"{median(by_tree[tree]):8.2f}" for tree in trees), what, flush=True)


if __name__ == "__main__":
    print_anything()
    main()
