"""What a class has handed in: folders and zips as learning platforms write them, by student."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile
from zipfile import Path as ZipPath

from pa_tutorial.printing import printable

Place = Path | ZipPath  # a file or folder, on disk or in a zip
Thing = tuple[str, Place]  # with its name, without what a platform puts before it
MOST_BYTES = 2**23  # of a file; a notebook contains its figures
MOST_ZIPPED = 2**30  # of the zip of a class
DEPTH = 3  # how many folders deep a student's files may be
IGNORED = re.compile(r"\.|__MACOSX$|__pycache__$|Thumbs\.db$|desktop\.ini$")
# What Moodle, Blackboard and Canvas put before the name of a student's file.
PLATFORMS = (
    re.compile(r"(?P<student>.+_\d+)_assignsubmission_(?:file|onlinetext)_?(?P<file>.*)"),
    re.compile(r"(?P<student>.+)_attempt_[\d-]+_?(?P<file>.*)"),
    re.compile(r"(?P<student>[^_]+(?:_LATE)?_\d+)_\d+_(?P<file>.+)"),
)
ENDINGS = (".ipynb", ".py", ".zip")


def students_in(
    path: Path, is_one: Callable[[Sequence[str]], bool]
) -> Iterator[tuple[str, list[Thing]]]:
    """Each student in a folder, zip or file, and what they have handed in.

    is_one  whether a folder with these names is one student's

    Raises OSError for a path that isn't there.
    """
    if not path.exists():
        raise OSError(f"no such file or folder: {path}")
    name, place = path.resolve().name, opened(path)
    inside = things_in(place)
    while len(inside) == 1 and inside[0][1].is_dir():  # a zip of a folder
        ((name, place),) = inside
        inside = things_in(place)
    if not place.is_dir() or is_one([name for name, _ in inside]):
        yield parted(name)[0], inside or [(parted(name)[1], place)]
        return
    students: dict[str, list[Thing]] = {}
    for full_name, thing in inside:
        (student, file), things = parted(full_name), things_in(opened(thing))
        students.setdefault(student, []).extend(things or [(file, thing)])
    yield from students.items()


def parted(name: str) -> tuple[str, str]:
    """The student and the file, from a name that a platform or the lecturer has given."""
    for pattern in PLATFORMS:
        if match := pattern.fullmatch(name):
            return printable(match["student"]), printable(match["file"] or name)
    ending = Path(name).suffix
    return printable(name.removesuffix(ending) if ending in ENDINGS else name), printable(name)


def things_in(place: Place) -> list[Thing]:
    """What a folder has, in the order of the names; nothing for a file."""
    inside = place.iterdir() if place.is_dir() else ()
    return sorted(((p.name, p) for p in inside if not IGNORED.match(p.name)), key=lambda t: t[0])


def files_in(things: Iterable[Thing], depth: int = DEPTH, folder: str = "") -> dict[str, Place]:
    """path -> file, of all files in some folders and zips."""
    found: dict[str, Place] = {}
    for name, thing in things:
        place = opened(thing)
        if place.is_dir() and depth:
            found |= files_in(things_in(place), depth - 1, f"{folder}{printable(name)}/")
        elif place.is_file():
            found[f"{folder}{printable(name)}"] = place
    return found


def opened(place: Place) -> Place:
    """The inside of a zip; anything else as it is."""
    if not (place.is_file() and place.name.lower().endswith(".zip")):
        return place
    try:
        return ZipPath(ZipFile(io.BytesIO(bytes_of(place, MOST_ZIPPED))))
    except BadZipFile:
        return place


def bytes_of(place: Place, most: int = MOST_BYTES) -> bytes:
    """Raises ValueError for a file that is too large."""
    with place.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{place.name} has more than {most:,} bytes")
    return data
