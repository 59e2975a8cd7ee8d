"""How large the house is, and how large it may be (tests/house_size.toml): `make size`.

Lines are those of Python files, as `ruff format` leaves them; `make lint` holds that.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

ROOT = Path(__file__).parent.parent
LIMITS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Size:
    """What has no limit may hold nothing."""

    kind: str
    name: str
    now: int

    @property
    def limit(self) -> int:
        return LIMITS[self.kind].get(self.name, [0])[0]

    @property
    def is_too_large(self) -> bool:
        return self.now > self.limit

    def __str__(self) -> str:
        goal = "".join(f"   goal {goal:,}" for goal in LIMITS[self.kind].get(self.name, [])[1:])
        over = "   TOO LARGE" if self.is_too_large else ""
        return f"{self.kind:7}{self.name:16}{self.now:7,} of {self.limit:6,}{goal}{over}"


def room_of(file: Path) -> str:
    """The room of a Python file; loose files of the package count as the walk's."""
    folder, *rooms = file.relative_to(ROOT).parent.parts
    if folder == "tests":
        return folder
    if rooms[:2] == ["viz", "microscope"]:
        return "viz/microscope"
    return rooms[0] if rooms else "walk"


def lines_by_room() -> dict[str, int]:
    lines: dict[str, int] = {}
    for folder in ("pa_tutorial", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            room = room_of(file)
            num_lines = len(file.read_text(encoding="utf-8").splitlines())
            lines[room] = lines.get(room, 0) + num_lines
    return lines


def words(notebook: Path) -> int:
    cells = nbformat.read(notebook, as_version=4).cells
    return sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")


def sizes() -> Iterator[Size]:
    lines = lines_by_room()
    for room, num_lines in lines.items():
        yield Size("lines", room, num_lines)
    yield Size("lines", "package", sum(lines.values()) - lines["tests"])
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield Size("words", path.stem[:2], words(path))
    yield Size("whole", "readme", len((ROOT / "README.md").read_bytes()))
    if (ROOT / ".git").exists():  # else this is no clone
        listed = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
        )
        yield Size("whole", "files", len(listed.stdout.splitlines()))


if __name__ == "__main__":
    found = list(sizes())
    print(*found, sep="\n")
    sys.exit(any(size.is_too_large for size in found))
