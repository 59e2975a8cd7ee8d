"""Make assignments, and grade what comes back.

python -m pa_tutorial.coursework make 05_online_softmax sliding_window --out course
python -m pa_tutorial.coursework grade --key course/instructor/key.json FILE_OR_FOLDER ...
"""

import argparse
import csv
import json
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pa_tutorial.arguments import require
from pa_tutorial.coursework import notebooks
from pa_tutorial.coursework.assignment import assignment, assignment_names, notebook_names
from pa_tutorial.coursework.grading import Grade, grade
from pa_tutorial.coursework.limits import Limits
from pa_tutorial.coursework.plain import PRACTICE, files_of_folder, write_folder


def make(names: list[str], out: Path, draw: int, limits: Limits) -> None:
    """Write the folders of a course.

    student/     notebooks with stubs
    plain/       one folder for each assignment, for those who do without notebooks
    instructor/  the same, solved, and key.json, which `grade` needs
    nbgrader/    a course folder of nbgrader

    Raises ValueError for a name that is no assignment, and if `out` is not empty.
    """
    made = [assignment(name) for name in names]
    require(not out.exists() or not any(out.iterdir()), "out", str(out), "a new or empty folder")
    for one in made:
        write_folder(one, out / "plain" / one.name)
        write_folder(one, out / "instructor" / "plain" / one.name, solved=True)
    names = [name for name in names if name in notebook_names()]
    for name in names:
        file = f"{name}.ipynb"
        notebooks.write(notebooks.student_notebook(name), out / "student" / file)
        notebooks.write(notebooks.instructor_notebook(name), out / "instructor" / file)
    if names:
        notebooks.write_nbgrader(names, out / "nbgrader", draw, limits)
    key = {"draw": draw, "limits": asdict(limits)}
    (out / "instructor" / "key.json").write_text(json.dumps(key, indent=1) + "\n", encoding="utf-8")


def grade_all(paths: list[Path], draw: int, limits: Limits, table: Path | None) -> bool:
    """Grade and print each; False if some could not be. `table` holds all that is known so far."""
    grades: list[Grade] = []
    refused: dict[str, str] = {}
    for path in paths:
        try:
            read = files_of_folder if path.is_dir() else notebooks.files_of_notebook
            one, files = read(path)
            # by its path: all may have one name, in other folders
            grades.append(grade(str(path), files, one, draw, limits))
            print(grades[-1], flush=True)
        except (ValueError, OSError) as error:
            refused[str(path)] = str(error)
            print(f"{path}: not graded: {error}", file=sys.stderr)
        if table:
            write_csv(grades, table, refused)
    return not refused


def read_key(path: Path) -> tuple[int, Limits]:
    """The draw and the limits of key.json. Raises ValueError for a file that is none."""
    try:
        key = json.loads(path.read_text(encoding="utf-8"))
        return int(key["draw"]), Limits(**key["limits"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"key is {path}; it must be the key.json that `make` wrote ({error!r})"
        ) from None


def write_csv(grades: list[Grade], path: Path, refused: Mapping[str, str] | None = None) -> None:
    """One row a submission and task. refused: submission -> why it was not graded."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["submission", "assignment", "task", "points", "out_of", "failed", "note"])
        for one in grades:
            for task in one.tasks:
                failed = " ".join(task.failed)
                words = [task.task, task.points, task.out_of, failed, task.note]
                rows.writerow([one.submission, one.assignment, *words])
        rows.writerows([name, "", "", "", "", "", why] for name, why in (refused or {}).items())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.coursework", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    makes = commands.add_parser("make", help="write the folders of a course")
    makes.add_argument("names", nargs="+", help=", ".join(assignment_names()))
    makes.add_argument("--out", type=Path, required=True, help="a new folder")
    makes.add_argument("--draw", type=int, help="the numbers of the grade; left out, by chance")
    makes.add_argument("--seconds", type=float, default=Limits.seconds, help="for one task")
    makes.add_argument("--megabytes", type=int, default=Limits.megabytes, help="for one task")
    grades = commands.add_parser("grade", help="grade notebooks and folders")
    grades.add_argument("submissions", nargs="+", type=Path)
    grades.add_argument("--key", type=Path, help="key.json; without it, the numbers of practice")
    grades.add_argument("--csv", type=Path, help="write the points there too")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        if args.command == "make":
            draw = secrets.randbelow(2**31) + 1 if args.draw is None else args.draw
            require(draw >= 1, "draw", draw, "1 or more: 0 are the numbers of the notebook")
            limits = Limits(args.seconds, args.megabytes)
            make(args.names, args.out, draw, limits)
            print(f"{args.out} written. Students get {args.out}/student or {args.out}/plain.")
        else:
            draw, limits = read_key(args.key) if args.key else (PRACTICE, Limits())
            if args.csv:
                write_csv([], args.csv)  # if it cannot be written, say so before hours of work
            return 0 if grade_all(args.submissions, draw, limits, args.csv) else 2
    except (ValueError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children are ended
    sys.exit(main())
