"""Make assignments, and grade submissions.

python -m pa_tutorial.coursework make 05_online_softmax sliding_window --out course
python -m pa_tutorial.coursework grade 05_online_softmax submitted --out grades
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from pa_tutorial.arguments import require
from pa_tutorial.coursework.apart import AT_MOST, Apart, Limits, Ran
from pa_tutorial.coursework.assignment import assignment, assignment_names
from pa_tutorial.coursework.grades import Grade, graded
from pa_tutorial.coursework.notebooks import write_notebooks
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.coursework.results import Results, feedback, new_draw
from pa_tutorial.coursework.submissions import Submission, find_submissions
from pa_tutorial.exercises.tasks import Assignment
from pa_tutorial.exercises.texts import notebook_names
from pa_tutorial.printing import print_anything

ALL_GRADED, SOME_NOT, WRONG_COMMAND, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
EXIT_CODES = """exit code: 0 all are graded; 1 some can't be, and are named; 2 the command is wrong;
130 interrupted, 143 terminated: with --out, the same command goes on"""
OUT = """a folder for points.csv, summary.md, junit.xml and feedback/; a new one, or that of a run
that was interrupted, which goes on"""
SECONDS = f"""time limit for each cell of a notebook or task of a folder (default: %(default)g); a
submission may take {AT_MOST} times as long in all"""
MEGABYTES = "memory limit per submission, on Linux only (default: %(default)d)"


def make(names: Sequence[str], out: Path) -> None:
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


def grade(args: argparse.Namespace) -> int:
    """Grade all submissions that the arguments name. Returns the exit code."""
    one, limits = assignment(args.assignment), Limits(args.seconds, args.megabytes)
    require(args.jobs >= 1, "jobs", args.jobs, "at least 1")
    is_draw = args.draw is None or args.draw >= 1
    require(is_draw, "draw", args.draw, "1 or more: 0 has the numbers of the notebook")
    found = find_submissions(args.submissions, one)
    if not found:
        raise ValueError(f"{' '.join(map(str, args.submissions))} is empty")
    if args.out:
        results = Results(args.out, one.name, args.draw)
        draw, grades = results.draw, graded_into(results, found, one, limits, args.jobs)
    else:
        draw = args.draw or new_draw()
        grades = []
        for _, its_grade in graded_apart(found, one, draw, limits, args.jobs):
            print(feedback(its_grade, one.name, draw), flush=True)
            grades.append(its_grade)
    print(f"For the same numbers again: --draw {draw}")
    if problems := [f"{grade.student}: {grade.problem}" for grade in grades if grade.problem]:
        print("Not graded:", *problems, sep="\n  ", file=sys.stderr)
    return SOME_NOT if problems else ALL_GRADED


def graded_into(
    results: Results, found: Sequence[Submission], one: Assignment, limits: Limits, jobs: int
) -> list[Grade]:
    """The grades of a class, written to a folder; what an interrupted run had graded is kept."""
    ungraded = [each for each in found if each.digest not in results.grades]
    if len(ungraded) < len(found):
        print(f"{len(found) - len(ungraded)} of {len(found)} were graded before.", flush=True)
    start = time.monotonic()
    every = graded_apart(ungraded, one, results.draw, limits, jobs)
    for count, (each, its_grade) in enumerate(every, 1):
        results.add(each.digest, its_grade)
        left = (time.monotonic() - start) / count * (len(ungraded) - count) / 60
        points = f"{its_grade.points:g} of {its_grade.out_of:g}"
        said = "not graded" if its_grade.problem else points
        print(
            f"{count} of {len(ungraded)}, {left:.0f} min left: {each.student}: {said}", flush=True
        )
    grades = results.finish([each.digest for each in found])
    print(f"{results.out} is written: points.csv, summary.md, junit.xml and feedback.")
    return grades


def graded_apart(
    submissions: Sequence[Submission], one: Assignment, draw: int, limits: Limits, jobs: int
) -> Iterator[tuple[Submission, Grade]]:
    """Each submission with its grade, as they get ready. Whatever happens, none goes on running."""
    apart, pool = Apart(), ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(apart.run, s, one.name, draw, limits): s for s in submissions}
        for future in as_completed(running):
            yield running[future], grade_of(running[future], future, one, draw)
    finally:
        apart.stopped.set()
        pool.shutdown(cancel_futures=True)


def grade_of(submission: Submission, future: Future[Ran], one: Assignment, draw: int) -> Grade:
    """The grade of what has run; whatever goes wrong with one is said, and ends no other."""
    try:
        return graded(submission, future.result(), one, draw)
    except Exception as error:
        failed = replace(submission, problem=f"it can't be graded: {error!r:.300}")
        return graded(failed, Ran(), one, draw)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.coursework", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    names = ", ".join(assignment_names())
    makes = commands.add_parser("make", help="write the folders for a course")
    makes.add_argument("names", nargs="+", help=names)
    makes.add_argument("--out", type=Path, required=True, help="a new folder to write to")
    words = "notebooks, plain folders, zips, or a folder of them"
    grades = commands.add_parser("grade", help="grade the submissions of one assignment")
    grades.epilog = EXIT_CODES
    grades.add_argument("assignment", help=names)
    grades.add_argument("submissions", nargs="+", type=Path, help=words)
    grades.add_argument("--out", type=Path, help=OUT)
    grades.add_argument("--jobs", type=int, default=1, help="at the same time (default: 1)")
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
            return ALL_GRADED
        return grade(args)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return WRONG_COMMAND
    except KeyboardInterrupt:
        print("Interrupted. With --out, the same command goes on.", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    print_anything()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that processes are ended
    sys.exit(main())
