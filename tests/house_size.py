"""How large the project is, and how large it may be (tests/house_size.toml): `make size`.

Python is counted in lines of code: without blank lines, comments and docstrings, so that deleting
an explanation saves nothing. A notebook's words are those of its Markdown, without what is folded
away in <details>.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat

from pa_tutorial.printing import print_anything

ROOT = Path(__file__).parent.parent
LIMITS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
OVER, TOO_LARGE = "over", "TOO LARGE"


def row(kind: str, name: str, now: int) -> str:
    """One thing against its limit: a warning above it, too large when 10 % above it.

    What has no limit is too large.
    """
    limit = LIMITS[kind].get(name, 0)
    verdict = TOO_LARGE if 10 * now > 11 * limit else OVER if now > limit else ""
    return f"{kind:7}{name:16}{now:7,} of {limit:6,}   {verdict}".rstrip()


def lines_of_code(source: str) -> int:
    texts = enumerate(map(str.strip, source.splitlines()), 1)
    lines = {number for number, text in texts if text and not text.startswith("#")}
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=last):
                lines.difference_update(range(first, last + 1))
    return len(lines)


def rooms_of(file: Path) -> tuple[str, ...]:
    """What a Python file counts for: its package, and its room there. "loose" is a file of
    pa_tutorial that is in no room; "simulator" is one of simt that is in none."""
    package, *rooms = file.relative_to(ROOT).parent.parts
    if package == "tests":
        return (package,)
    return package, rooms[0] if rooms else {"simt": "simulator", "pa_tutorial": "loose"}[package]


def words_of_notebook(path: Path) -> int:
    cells = nbformat.read(path, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return len(re.sub("<details>.*?</details>", "", text, flags=re.DOTALL).split())


def rows() -> Iterator[str]:
    lines: Counter[str] = Counter()
    for folder in ("simt", "pa_tutorial", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            size = lines_of_code(file.read_text(encoding="utf-8"))
            lines.update(dict.fromkeys(rooms_of(file), size))
    for room, num_lines in lines.items():
        yield row("lines", room, num_lines)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield row("words", path.stem[:2], words_of_notebook(path))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    yield row("words", "README", len(readme.split()))
    if (ROOT / ".git").exists():  # else this is no clone
        git = ["git", "ls-files"]
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
        yield row("files", "repository", len(listed.stdout.splitlines()))


if __name__ == "__main__":
    print_anything()
    found = list(rows())
    print(*found, sep="\n")
    sys.exit(any(TOO_LARGE in one for one in found))
