"""Plant small mistakes at random, one at a time, and see which the tests of their room notice.

`python -m tests.planted` takes the code of this clone: 12 mistakes in each of six rooms, the same
for the same seed; in the kernels' room, only in the files of the CUDA kernels. `--of` takes another
clone's code; `--within` plants them, and runs the tests, in a copy of another clone, so that the
tests before and after a change can be compared. It takes an hour or more.

    python -m tests.planted --rooms kernels --count 60
"""

import argparse
import ast
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pa_tutorial.kernels.sources import FILES
from pa_tutorial.kernels.template import FLOAT8
from pa_tutorial.printing import print_anything
from tests.exercises.mutants import mistakes

ROOT = Path(__file__).parent.parent
KERNELS = "kernels"
ROOMS = ("simt", "checks", "paging", "engine", "attention", KERNELS)
# What pytest is told, one after the other. The ladder finds most mistakes in a kernel, and soon.
TESTS = {room: ([f"tests/{room}"],) for room in ROOMS}
TESTS[KERNELS] = (
    ["tests/checks/test_ladder.py", "-k", "cuda"],
    ["tests/kernels"],
    ["tests/exercises/test_blanks.py"],  # write_keys, which no stage calls
)
SECONDS = 600  # that a room's tests may take; they fail if they take longer


@dataclass(frozen=True)
class Mistake:
    """A piece of one line, and what stands in its place."""

    file: str
    line: int
    before: str  # the whole line
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n  - {self.before.strip()}\n  + {self.after.strip()}"

    def planted(self, text: str) -> str | None:
        """The text with the mistake; None if it no longer has the line, or has it twice."""
        lines = text.splitlines(keepends=True)
        if lines[self.line - 1 : self.line] == [self.before]:
            return "".join([*lines[: self.line - 1], self.after, *lines[self.line :]])
        return text.replace(self.before, self.after) if lines.count(self.before) == 1 else None


def mistakes_in(file: str, text: str) -> Iterator[Mistake]:
    """All small mistakes that can be made on one line of a function of this file."""
    lines = text.splitlines(keepends=True)
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    inside = [node for function in functions for part in function.body for node in ast.walk(part)]
    for node in filter(on_one_line, dict.fromkeys(inside)):  # each once, in the same order always
        line = lines[node.lineno - 1]
        for mistake in mistakes(node):
            new = ast.unparse(ast.fix_missing_locations(mistake))
            new = f"({new})" if isinstance(mistake, ast.BinOp | ast.BoolOp | ast.Compare) else new
            start, end = (len(line.encode()[:n].decode()) for n in position(node)[1:])
            after = line[:start] + new + line[end:]
            if parses("".join([*lines[: node.lineno - 1], after, *lines[node.lineno :]])):
                yield Mistake(file, node.lineno, line, after)


def on_one_line(node: ast.AST) -> bool:
    return getattr(node, "lineno", 0) == getattr(node, "end_lineno", None)


def position(node: ast.AST) -> tuple[int, int, int]:
    return node.lineno, node.col_offset, node.end_col_offset


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def drawn(clone: Path, room: str, count: int, seed: int) -> list[Mistake]:
    """`count` mistakes of a room, drawn from all that can be made there."""
    files = sorted((clone / "pa_tutorial" / room).rglob("*.py"))
    if room == KERNELS:
        of_a_kernel = {*sum(FILES.values(), ()), FLOAT8}
        files = [file for file in files if file.stem in of_a_kernel]
    names = [file.relative_to(clone).as_posix() for file in files]
    texts = [file.read_text(encoding="utf-8") for file in files]
    found = [m for name, text in zip(names, texts, strict=True) for m in mistakes_in(name, text)]
    return random.Random(f"{seed} {room}").sample(found, count)


def noticed(clone: Path, room: str) -> str:
    """The first test of the room that fails; "" if none does."""
    return next(filter(None, (failure(clone, tests) for tests in TESTS[room])), "")


def failure(clone: Path, tests: list[str]) -> str:
    """The first of these tests that fails; "" if none does."""
    command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", *tests]
    try:
        run = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"more than {SECONDS} seconds"
    said = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "" if run.returncode == 0 else (said or ["the tests did not start"])[0]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12, help="per room")
    parser.add_argument("--of", type=Path, default=ROOT, help="the clone whose code is taken")
    parser.add_argument("--within", type=Path, default=ROOT, help="the clone that is tested")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    given = parser.parse_args()
    for room in given.rooms:
        caught = []
        for mistake in drawn(given.of, room, given.count, given.seed):
            with TemporaryDirectory() as folder:
                clone = Path(folder) / "clone"
                shutil.copytree(given.within, clone, ignore=shutil.ignore_patterns(".*", "build"))
                file = clone / mistake.file
                text = mistake.planted(file.read_text(encoding="utf-8")) if file.exists() else None
                if text is None:
                    print(f"{mistake}\n  gone", flush=True)
                    continue
                file.write_text(text, encoding="utf-8")
                caught.append(noticed(clone, room))
                print(f"{mistake}\n  {caught[-1] or 'NOT NOTICED'}", flush=True)
        print(f"{room}: {sum(map(bool, caught))} of {len(caught)} noticed\n", flush=True)


if __name__ == "__main__":
    print_anything()
    main()
