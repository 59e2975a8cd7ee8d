"""How large the house is, and how large it may be (tests/house_size.toml): `make size`.

Lines are those of Python files, as `ruff format` leaves them; `make lint` holds that.
"""

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat

ROOT = Path(__file__).parent.parent
LIMITS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOO_LARGE = "TOO LARGE"


def row(kind: str, name: str, now: int) -> str:
    """One thing against its limit; what has no limit may hold nothing."""
    limit = LIMITS[kind].get(name, 0)
    over = f"   {TOO_LARGE}" if now > limit else ""
    return f"{kind:7}{name:16}{now:7,} of {limit:6,}{over}"


def room_of(file: Path) -> str:
    """The room of a Python file; loose files of the package count as the walk's."""
    folder, *rooms = file.relative_to(ROOT).parent.parts
    if folder == "tests":
        return folder
    if rooms[:2] == ["viz", "microscope"]:
        return "viz/microscope"
    return rooms[0] if rooms else "walk"


def words(notebook: Path) -> int:
    cells = nbformat.read(notebook, as_version=4).cells
    return sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")


def rows() -> Iterator[str]:
    lines: Counter[str] = Counter()
    for folder in ("pa_tutorial", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            lines[room_of(file)] += len(file.read_text(encoding="utf-8").splitlines())
    lines["package"] = lines.total() - lines["tests"]
    for room, num_lines in lines.items():
        yield row("lines", room, num_lines)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield row("words", path.stem[:2], words(path))
    docs = [
        file.read_text(encoding="utf-8") for file in (ROOT / "docs").iterdir() if file.is_file()
    ]
    yield row("whole", "docs", sum(len(text.splitlines()) for text in docs))
    yield row("whole", "readme", len((ROOT / "README.md").read_bytes()))
    if (ROOT / ".git").exists():  # else this is no clone
        git = ["git", "ls-files"]
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
        yield row("whole", "files", len(listed.stdout.splitlines()))


if __name__ == "__main__":
    found = list(rows())
    print(*found, sep="\n")
    sys.exit(any(TOO_LARGE in one for one in found))
