"""What a class has handed in: folders and zips as learning platforms write them, by student."""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from pa_tutorial.printing import printable

MOST_BYTES = 2**23  # of a file; a notebook contains its figures
MOST_ZIPPED = 2**30  # of the zip of a class
MOST_FILES, DEPTH = 2_000, 6  # in a student's zip or folder, and how many folders deep
LONGEST_NAME = 150
IGNORED = re.compile(r"\.|__MACOSX$|__pycache__$|Thumbs\.db$|desktop\.ini$")
# What Moodle, Blackboard and Canvas put before the name of a student's file.
PLATFORMS = (
    re.compile(r"(?P<student>.+_\d+)_assignsubmission_(?:file|onlinetext)_?(?P<file>.*)"),
    re.compile(r"(?P<student>.+)_attempt_[\d-]+_?(?P<file>.*)"),
    re.compile(r"(?P<student>[^_]+(?:_LATE)?_\d+)_\d+_(?P<file>.+)"),
)
ENDINGS = (".ipynb", ".py", ".zip")


class Zipped:
    """A file or folder in a zip, with what we need of a Path."""

    def __init__(self, name: str, archive: ZipFile, info: ZipInfo | None = None) -> None:
        self.name, self.archive, self.info = name, archive, info
        self.inside: dict[str, Zipped] = {}

    def is_dir(self) -> bool:
        return self.info is None

    def is_file(self) -> bool:
        return self.info is not None

    def iterdir(self) -> Iterable["Zipped"]:
        return self.inside.values()

    def read(self, most: int) -> bytes:
        with self.archive.open(self.info) as file:
            return file.read(most)


Place = Path | Zipped
Thing = tuple[str, Place]  # with its name, without what a platform puts before it


def students_in(
    path: Path, is_one: Callable[[Sequence[str]], bool]
) -> Iterator[tuple[str, list[Thing]]]:
    """Each student in a folder, zip or file, and what they have handed in.

    is_one  whether a folder with these names is one student's

    Raises OSError for a path that isn't there.
    """
    if not path.exists():
        raise OSError(f"no such file or folder: {path}")
    name, place = path.resolve().name, opened(path, MOST_ZIPPED)
    inside = things_in(place)
    while len(inside) == 1 and inside[0][1].is_dir():  # a zip of a folder
        ((name, place),) = inside
        inside = things_in(place)
    if not place.is_dir() or is_one([name for name, _ in inside]):
        yield parted(name)[0], inside or [(parted(name)[1], place)]
        return
    students: dict[str, list[Thing]] = {}
    for full_name, thing in inside:
        student, file = parted(full_name)
        students.setdefault(student, []).extend(inside_of(thing) or [(file, thing)])
    yield from students.items()


def parted(name: str) -> tuple[str, str]:
    """The student and the file, from a name that a platform or the lecturer has given."""
    plain = printable(name).replace("\n", " ")
    for pattern in PLATFORMS:
        if match := pattern.fullmatch(plain):
            return match["student"], match["file"] or plain
    ending = Path(plain).suffix
    return plain.removesuffix(ending) if ending in ENDINGS else plain, plain


def things_in(place: Place) -> list[Thing]:
    """What a folder has, in the order of the names; nothing for a file."""
    inside = place.iterdir() if place.is_dir() else ()
    return sorted(((p.name, p) for p in inside if not IGNORED.match(p.name)), key=lambda t: t[0])


def inside_of(thing: Place) -> list[Thing]:
    """What a student's folder or zip has; nothing for a file, or if it can't be read."""
    try:
        return things_in(opened(thing))
    except OSError:
        return []


def files_of(things: Sequence[Thing]) -> dict[str, Place]:
    """path -> file, of all that a student has handed in, in folders and zips too."""
    found: dict[str, Place] = {}
    for path, place in flat(things, DEPTH, ""):
        if len(path) > LONGEST_NAME or len(found) == MOST_FILES:
            raise ValueError(f"it has too many files, or too long a name: {path:.60}")
        found[path] = place
    return found


def flat(things: Iterable[Thing], depth: int, folder: str) -> Iterator[tuple[str, Place]]:
    for name, thing in things:
        place, plain = opened(thing), folder + printable(name).replace("\n", " ")
        if place.is_dir() and depth:
            yield from flat(things_in(place), depth - 1, f"{plain}/")
        elif place.is_file():
            yield plain, place


def opened(place: Place, most: int = MOST_BYTES) -> Place:
    """The inside of a zip; anything else, or what can't be opened, as it is."""
    if not (place.is_file() and place.name.lower().endswith(".zip")):
        return place
    try:
        archive = ZipFile(io.BytesIO(bytes_of(place, most)))
    except Exception:  # a broken zip raises many kinds
        return place
    root = Zipped(place.name, archive)
    for info in archive.infolist():
        *folders, name = info.filename.replace("\\", "/").split("/")
        folder = root
        for part in folders:
            if part not in ("", ".", ".."):
                folder = folder.inside.setdefault(part, Zipped(part, archive))
        if name and folder.is_dir():
            folder.inside[name] = Zipped(name, archive, info)
    return root


def bytes_of(place: Place, most: int = MOST_BYTES) -> bytes:
    """Raises ValueError for a file that is too large."""
    if isinstance(place, Zipped):
        data = place.read(most + 1)
    else:
        with place.open("rb") as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{place.name} has more than {most:,} bytes")
    return data
