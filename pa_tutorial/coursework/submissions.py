"""What of a submission is graded: the files of a plain folder, or a notebook."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath

import nbformat

from pa_tutorial.coursework.handed_in import Place, Thing, bytes_of, files_of, parted, students_in
from pa_tutorial.exercises.tasks import Assignment

COPY = re.compile(r"( ?\(\d+\)|[-_ ]\d+)$")  # answers (1), answers-1: as browsers name a file
MOST_BESIDE = 2**26  # bytes of all files beside a notebook
# A lecturer reads what has these: it may look where a grade is made, or at our answers.
ODD = re.compile(
    r"_getframe|f_locals|tb_frame|\bgc\.get_|\bctypes\b|\bsettrace\b|\bkill(?:pg)?\("
    r"|/proc/|os\.write\b|sys\.modules|ON_ATTEMPT|EXERCISES\b|exercises_of\b|\bnamed\(|\.solution\b"
    r"|pa_tutorial\.(?:coursework|checks\.oracle|exercises\.(?:pages|import_module|\d+_\w+))"
)


@dataclass(frozen=True)
class Submission:
    """What a student has handed in.

    file     what of it is graded
    cells    the code cells of a notebook; None for one that isn't run
    files    path -> bytes: Python files, or all that lay beside a notebook
    problem  why there is nothing to run; "" if there is
    """

    student: str
    file: str = ""
    cells: tuple[str | None, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    problem: str = ""

    @property
    def odd(self) -> str:
        """What in its code a lecturer should look at."""
        python = (data for path, data in self.files.items() if path.endswith(".py"))
        texts = [*filter(None, self.cells), *(data.decode(errors="replace") for data in python)]
        return " ".join(dict.fromkeys(ODD.findall("\n".join(texts))))

    @property
    def digest(self) -> str:
        """The same when an interrupted run goes on, unless the submission has changed."""
        files = [(path, sha256(data).hexdigest()) for path, data in self.files.items()]
        parts = self.student, self.file, self.cells, files, self.problem
        return sha256(json.dumps(parts).encode()).hexdigest()


def find_submissions(paths: Sequence[Path], one: Assignment) -> list[Submission]:
    """All submissions in folders, zips and files, each student under a name of their own.

    A folder or zip is one submission if it has a file of the assignment, or nothing but a notebook
    or Python file; else each thing in it is one. Raises OSError for a path that isn't there.
    """

    def is_one(names: Sequence[str]) -> bool:
        is_alone = len(names) == 1 and names[0].endswith((".ipynb", ".py"))
        is_alone = is_alone and parted(names[0])[1] == names[0]  # not a platform's
        return is_alone or any(meant(name, one) for name in names)

    found: dict[str, Submission] = {}
    for path in paths:
        for student, things in students_in(path, is_one):
            names = (student, *(f"{student} ({n})" for n in range(2, len(found) + 2)))
            name = next(name for name in names if name not in found)
            found[name] = read(name, things, one)
    return list(found.values())


def meant(name: str, one: Assignment) -> str:
    """The file of the assignment that is meant, answers.py by `Answers (1).py`; "" for none."""
    path = PurePosixPath(name.lower())
    plain = COPY.sub("", path.stem) + path.suffix
    return plain if plain in one.starter else ""


def read(student: str, things: Sequence[Thing], one: Assignment) -> Submission:
    """Whatever is wrong with a submission is said in its `problem`."""
    try:
        files = files_of(things)
        if notebook := notebook_of(files, one):
            cells = cells_of(notebook, files[notebook])
            return Submission(student, notebook, cells, beside_notebook(notebook, files))
        return plain_submission(student, files, one)
    except Exception as error:  # there is no end to what a zip or a notebook may raise
        words = str(error) if type(error) is ValueError else f"it can't be read: {error!r}"
        return Submission(student, problem=f"{words:.300}")


def notebook_of(files: Mapping[str, Place], one: Assignment) -> str:
    """The notebook to run; "" if there is none, or if the files of the assignment are written."""
    found = [path for path in files if path.endswith(".ipynb") and one.has_notebook]
    written = [p for p in files if meant(p, one) and text_of(files[p]) not in one.starter.values()]
    named = [path for path in found if PurePosixPath(path).stem == one.name]
    found = named if len(named) == 1 else found
    if len(found) > 1 and not written:
        raise ValueError(f"it has {len(found)} notebooks, and only one counts: {', '.join(found)}")
    return "" if written or not found else found[0]


def plain_submission(student: str, files: Mapping[str, Place], one: Assignment) -> Submission:
    named = [path for path in files if meant(path, one)]
    if not named:
        needed = [*(["a notebook"] if one.has_notebook else []), *one.starter]
        has = f"it has {', '.join(files)}" if files else "nothing was handed in"
        raise ValueError(f"a submission needs {' or '.join(needed)}; {has}")
    first = min(named, key=lambda path: path.count("/"))
    require_text(first, files[first])
    beside = python_beside(first, files)
    mine = {name: bytes_of(place) for name, place in beside.items() if not meant(name, one)}
    for wanted in one.starter:
        copies = sorted(name for name in beside if meant(name, one) == wanted)
        if copies:  # of answers.py and answers (1).py, the first
            mine[wanted] = bytes_of(beside[wanted if wanted in copies else copies[0]])
    return Submission(student, first, (), mine)


def beside_notebook(notebook: str, files: Mapping[str, Place]) -> dict[str, bytes]:
    """path, from the notebook's folder on -> bytes, of whatever else lies in that folder."""
    folder, found = PurePosixPath(notebook).parent, {}
    for path in map(PurePosixPath, files):
        if path.is_relative_to(folder) and path.suffix != ".ipynb":
            found[str(path.relative_to(folder))] = bytes_of(files[str(path)])
            if sum(map(len, found.values())) > MOST_BESIDE:
                raise ValueError(
                    f"the files beside {notebook} have more than {MOST_BESIDE:,} bytes"
                )
    return found


def python_beside(path: str, files: Mapping[str, Place]) -> dict[str, Place]:
    """name -> file, of the Python files in the same folder that aren't tests."""
    folder = PurePosixPath(path).parent
    beside = (p for p in map(PurePosixPath, files) if p.parent == folder and p.suffix == ".py")
    mine = (p for p in beside if p.name != "conftest.py" and not p.name.startswith("test_"))
    return {p.name: files[str(p)] for p in mine}


def text_of(place: Place) -> str:
    """Without the byte order mark and the line ends of some editors."""
    return bytes_of(place).decode("utf-8-sig", errors="replace").replace("\r\n", "\n")


def require_text(name: str, place: Place) -> None:
    if not bytes_of(place).strip():
        raise ValueError(f"{name} is empty")


def cells_of(name: str, place: Place) -> tuple[str | None, ...]:
    """The code cells of a notebook; None for those that show only one machine (tagged live)."""
    require_text(name, place)
    text = text_of(place)
    try:
        cells = [c for c in nbformat.reads(text, as_version=4).cells if c.cell_type == "code"]
        live = [c.source if "live" not in c.metadata.get("tags", []) else None for c in cells]
    except Exception as error:  # nbformat raises many kinds
        raise ValueError(f"{name} is not a notebook: {error!r:.200}") from None
    if not any(map(str.strip, filter(None, live))):
        raise ValueError(f"{name} has no code")
    return tuple(live)
