"""Make assignments, and grade submissions.

python -m pa_tutorial.coursework make 05_online_softmax sliding_window --out course
python -m pa_tutorial.coursework grade 05_online_softmax FILE_OR_FOLDER ...
"""

import argparse
import csv
import os
import secrets
import signal
import sys
from pathlib import Path

from pa_tutorial.arguments import require
from pa_tutorial.coursework.apart import Limits
from pa_tutorial.coursework.assignment import assignment, assignment_names
from pa_tutorial.coursework.grades import grade
from pa_tutorial.coursework.notebooks import write_notebooks
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.coursework.submissions import read_submission
from pa_tutorial.exercises.texts import notebook_names
from pa_tutorial.printing import print_anything

SECONDS = """time limit per task and submission, including the start of its process; then the
process is killed, and the cases that haven't run fail (default: %(default)g)"""
MEGABYTES = "memory limit per task and submission, on Linux only (default: %(default)d)"


def make(names: list[str], out: Path) -> None:
    """Write the folders of a course.

    student/     notebooks with stubs
    plain/       one folder per assignment, for courses without notebooks
    instructor/  the same, solved

    Raises ValueError for an unknown assignment, and if `out` isn't empty.
    """
    made = [assignment(name) for name in names]
    require(not out.exists() or not any(out.iterdir()), "out", str(out), "a new or empty folder")
    for one in made:
        write_folder(one, out / "plain" / one.name)
        write_folder(one, out / "instructor" / "plain" / one.name, solved=True)
        if one.name in notebook_names():
            write_notebooks(one.name, out / "student", out / "instructor")
    forms = [form for form in ("student", "plain") if (out / form).exists()]
    print(f"{out} written. Students get {' or '.join(f'{out}/{form}' for form in forms)}.")


def grade_all(name: str, paths: list[Path], draw: int, limits: Limits, table: Path) -> bool:
    """Grade and print each; False if any can't be graded. `table` has the results so far."""
    one, all_graded = assignment(name), True
    with table.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["submission", "assignment", "task", "points", "out_of", "failed", "why"])
        for path in paths:
            try:
                # by its path, because files in different folders may have the same name
                result = grade(str(path), read_submission(path, one), one, draw, limits)
                print(result, flush=True)
                for task in result.tasks:
                    words = " ".join(task.failed), " | ".join(task.reasons)
                    rows.writerow([path, name, task.task, task.points, task.out_of, *words])
            except (ValueError, OSError) as error:
                print(f"{path}: not graded: {error}", file=sys.stderr)
                rows.writerow([path, name, "", "", "", "", error])
                all_graded = False
            file.flush()
    print(f"For the same numbers again: --draw {draw}")
    return all_graded


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.coursework", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    names = ", ".join(assignment_names())
    makes = commands.add_parser("make", help="write the folders for a course")
    makes.add_argument("names", nargs="+", help=names)
    makes.add_argument("--out", type=Path, required=True, help="a new folder to write to")
    grades = commands.add_parser("grade", help="grade notebooks and folders of one assignment")
    grades.add_argument("assignment", help=names)
    grades.add_argument("submissions", nargs="+", type=Path, help="notebooks, or plain folders")
    nowhere = Path(os.devnull)
    grades.add_argument("--csv", type=Path, default=nowhere, help="also write the points here")
    grades.add_argument("--draw", type=int, help="seed of the cases' numbers (default: random)")
    seconds, megabytes = Limits.seconds, Limits.megabytes
    grades.add_argument("--seconds", type=float, default=seconds, help=SECONDS)
    grades.add_argument("--megabytes", type=int, default=megabytes, help=MEGABYTES)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        if args.command == "make":
            make(args.names, args.out)
            return 0
        draw = 1 + secrets.randbelow(2**31) if args.draw is None else args.draw
        require(draw >= 1, "draw", draw, "1 or more: 0 are the numbers of the notebook")
        limits = Limits(args.seconds, args.megabytes)
        return 0 if grade_all(args.assignment, args.submissions, draw, limits, args.csv) else 2
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    print_anything()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are ended
    sys.exit(main())
