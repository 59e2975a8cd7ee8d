"""Plant small mistakes in our code, one at a time, and see which test files notice each.

    python -m tests.planted draw --seed 77 --count 340 > mistakes.jsonl
    python -m tests.planted run mistakes.jsonl > caught.jsonl
    python -m tests.planted table caught.jsonl
    python -m tests.planted run caught.jsonl --clone ../changed > still_caught.jsonl

A mistake meets the tests that run its line, as tests/which_lines.py has measured it in that clone
(first `pip install coverage`, and run pytest with it): those of FILES test files, the room's own
first, of each the quickest, up to SECONDS_A_FILE, and of all up to SECONDS. The first failure of a
file is noted. If a mistake was caught in an earlier run, one failure is enough, and what caught it
then is tried first. `--times 4` gives each mistake four times as much: for what nothing caught.
`--rest` tries the tests of `make test-all`. A run works in copies of the clone, one per core.
"""

import argparse
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pa_tutorial.printing import print_anything
from tests.mistakes import Mistake, mistakes_in, parses
from tests.which_lines import Lines

ROOT = Path(__file__).parent.parent
FORMER = ("attention", "checks", "engine", "kernels", "paging", "simt")  # 12 of each, as in 2.0.0
# Of the processor's time, so that a busy machine gives the same.
SECONDS_A_FILE, SECONDS, FILES = 2.0, 20.0, 15
ENDLESS = 20.0  # a test that takes so long more than usual has failed
# Its examples no longer apply where a line is another one, which says nothing about the line.
BY_TEXT = "test_wrong.py"
# Nobody knows which lines of a kernel a test runs, so these are always tried.
LADDER = re.compile(r"test_ladder.py::test_stage_is_right\[(cuda|cpu|triton)")
OURS = ("simt", "pa_tutorial", "tests")
# What takes seconds to import and isn't ours is imported once, before the processes begin.
LARGE = ("torch", "numba.cuda", "matplotlib.pyplot", "nbclient", "triton", "ml_dtypes", "greenlet")


@dataclass(frozen=True)
class Job:
    """A mistake, and the tests that meet it.

    seconds  how long each test takes without the mistake
    before   the tests that caught it in an earlier run, by file; None if there was none
    times    how often SECONDS they may take
    """

    mistake: Mistake
    seconds: dict[str, float]
    before: dict[str, str] | None
    times: int

    @property
    def room(self) -> str:
        return room_of(self.mistake.file)


def room_of(file: str) -> str:
    """pa_tutorial's rooms by their names, simt's with "simt" in front."""
    package, *folders = file.split("/")[:-1]
    return "/".join([package, *folders[:1]]) if package == "simt" else (folders or ["loose"])[0]


def all_mistakes(clone: Path) -> dict[str, list[Mistake]]:
    """Room -> what can be planted there."""
    found: dict[str, list[Mistake]] = defaultdict(list)
    for package in ("pa_tutorial", "simt"):
        for path in sorted((clone / package).rglob("*.py")):
            file = path.relative_to(clone).as_posix()
            found[room_of(file)] += mistakes_in(file, path.read_text(encoding="utf-8"))
    return found


def sample(clone: Path, mistakes: list[Mistake], num: int, seed: str) -> Iterator[Mistake]:
    """`num` of them, and only what parses."""
    for mistake in random.Random(seed).sample(mistakes, len(mistakes)):
        if mistake.before.lstrip().startswith('"""'):
            continue  # no code
        text = mistake.planted((clone / mistake.file).read_text(encoding="utf-8"))
        if text and parses(text):
            yield mistake
            num -= 1
        if not num:
            return


def drawn(clone: Path, seed: int, count: int) -> Iterator[Mistake]:
    """12 of each former room; then about `count`, by the size of each room, and at least 8."""
    found = all_mistakes(clone)
    for room in FORMER:
        yield from sample(clone, found[room], 12, f"1 {room}")
    total = sum(map(len, found.values()))
    for room, mistakes in found.items():
        num = max(8, count * len(mistakes) // total)
        yield from sample(clone, mistakes, num, f"{seed} {room}")


def quickest(room: str, seconds: dict[str, float], times: int) -> dict[str, float]:
    """Of each file, the tests that take SECONDS_A_FILE together, and at least one."""
    of_files: dict[str, dict[str, float]] = defaultdict(dict)
    for test in sorted(seconds, key=seconds.__getitem__):
        tests = of_files[test.partition("::")[0]]
        if sum(tests.values()) < times * SECONDS_A_FILE:
            tests[test] = seconds[test]

    def order(file: str) -> tuple[bool, float]:
        return f"tests/{room}/" not in file, sum(of_files[file].values())

    files = [file for file in sorted(of_files, key=order) if BY_TEXT not in file]
    return {test: took for file in files[: times * FILES] for test, took in of_files[file].items()}


class Watch:
    """A plugin for pytest: runs the tests of a job, up to a time, and writes down what fails."""

    def __init__(self, job: Job, log: Path) -> None:
        self.job, self.log = job, log
        self.failed: set[str] = set()
        self.began = processor_time()

    def note(self, what: str, test: str = "") -> None:
        with self.log.open("a", encoding="utf-8") as file:
            print(what, test, file=file)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.job.seconds]
        cost: Counter[str] = Counter()
        for item in items:
            cost[item.path.name] += self.job.seconds[item.nodeid]
        before = (self.job.before or {}).values()

        def order(item: pytest.Item) -> tuple[bool, bool, float]:
            other_room = f"tests/{self.job.room}/" not in item.nodeid
            return item.nodeid not in before, other_room, cost[item.path.name]

        items.sort(key=order)

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        is_enough = item.nodeid.partition("::")[0] in self.failed
        is_enough |= bool(self.job.before and self.failed)
        if is_enough or processor_time() - self.began > self.job.times * SECONDS:
            return True  # it counts as done
        self.note("start", item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, ENDLESS + 4 * self.job.seconds[item.nodeid])
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid.partition("::")[0])
            self.note("failed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note("failed", report.nodeid)

    def pytest_sessionfinish(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.note("end")


def processor_time() -> float:
    """Of this process and those that it started and that have ended."""
    return sum(os.times()[:4])


def fail_endless(*_: object) -> None:
    pytest.fail(f"{ENDLESS} seconds longer than usual")


def run_tests(job: Job, log: Path, options: list[str]) -> None:
    """In a process of its own, which imports our modules anew, so with the mistake."""
    os.setpgrp()
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    signal.signal(signal.SIGPROF, fail_endless)
    files = sorted({test.partition("::")[0] for test in job.seconds})
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", *options]
    quiet.append("--continue-on-collection-errors")
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        pytest.main([*quiet, *files], plugins=[Watch(job, log)])
    os._exit(0)


def ends(pid: int, seconds: float) -> bool:
    """Whether a process ends in time; if not, it is ended with all it started."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def caught_by(clone: Path, job: Job, options: list[str]) -> dict[str, str] | None:
    """Test file -> its first failing test; None if the clone no longer has the line."""
    file, log = clone / job.mistake.file, clone / "planted.log"
    right = file.read_text(encoding="utf-8") if file.exists() else ""
    if (wrong := job.mistake.planted(right)) is None:
        return None
    log.write_text("", encoding="utf-8")
    times = file.stat()
    file.write_text(wrong, encoding="utf-8")
    if (pid := os.fork()) == 0:
        run_tests(job, log, options)
    with suppress(OSError):
        os.setpgid(pid, pid)
    has_ended = ends(pid, job.times * 4 * SECONDS + 3 * ENDLESS)
    file.write_text(right, encoding="utf-8")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    notes = [line.partition(" ") for line in log.read_text(encoding="utf-8").splitlines()]
    failed = [test for what, _, test in notes if what == "failed"]
    if not has_ended or not notes or notes[-1][0] != "end":  # it hung, or pytest itself ended
        started = [test for what, _, test in notes if what == "start"]
        failed.append(started[-1] if started else "at the start")
    return {test.partition("::")[0]: test for test in reversed(failed)}


def copied(clone: Path, folder: Path) -> Path:
    """A folder with what git has of a clone."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=clone, capture_output=True, encoding="utf-8", check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(clone / name, folder / name)
    return folder


def run_jobs(clone: Path, jobs: list[Job], options: list[str]) -> None:
    """In a process of its own: one job after the other, in one copy of the clone."""
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "NUMBA_OPT": "1"}
    with TemporaryDirectory() as name:
        folder = copied(clone, Path(name).resolve())
        os.chdir(folder)
        os.environ["PYTHONPATH"] = sys.path[0] = str(folder)
        for module in LARGE:
            importlib.import_module(module)
        for job in jobs:
            began = time.monotonic()
            caught = caught_by(folder, job, options)
            seconds = round(time.monotonic() - began, 1)
            result = {"caught": caught, "tried": len(job.seconds), "seconds": seconds}
            print(json.dumps(asdict(job.mistake) | result), flush=True)


def run(given: argparse.Namespace, clone: Path) -> None:
    lines, jobs = Lines((given.measured or clone).resolve()), []
    for line in given.files[0].read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        mistake = Mistake(*(one[name] for name in ("file", "line", "before", "after")))
        tests, before = lines.tests(mistake.file, mistake.line), one.get("caught")
        first = {test: tests.get(test, 0.0) for test in (before or {}).values()}
        if mistake.file.startswith("pa_tutorial/kernels/"):
            first |= {test: took for test, took in lines.seconds.items() if LADDER.search(test)}
        chosen = quickest(room_of(mistake.file), tests, given.times) | first
        here = {test: chosen[test] for test in chosen if (clone / test.partition("::")[0]).exists()}
        jobs.append(Job(mistake, here, before, given.times))
    options = ["--rest"] if given.rest else []
    for core in range(given.cores):
        if os.fork() == 0:
            run_jobs(clone, jobs[core :: given.cores], options)
            os._exit(0)
    for _ in range(given.cores):
        os.wait()


def table(files: list[Path]) -> Iterator[str]:
    """How many mistakes each test file caught, and how many it alone; then what nothing caught."""
    caught, alone, nothing = Counter[str](), Counter[str](), []
    for line in (line for file in files for line in file.read_text(encoding="utf-8").splitlines()):
        one = json.loads(line)
        found = one["caught"]
        by = [*(found or ())]
        caught.update(by)
        alone.update(by if len(by) == 1 else ())
        if found == {}:
            nothing.append(Mistake(*(one[name] for name in ("file", "line", "before", "after"))))
    yield "caught  alone"
    for test in sorted({*caught, *(map(str, Path("tests").rglob("test_*.py")))}):
        yield f"{caught[test]:6}{alone[test]:7}  {test}"
    yield f"{len(nothing)} that nothing caught:"
    yield from map(str, nothing)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("what", choices=["draw", "run", "table"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--count", type=int, default=340)
    parser.add_argument("--clone", type=Path, default=ROOT, help="whose code and tests")
    parser.add_argument("--measured", type=Path, help="where lines were measured, if not there")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--rest", action="store_true")
    given = parser.parse_args()
    clone = given.clone.resolve()
    if given.what == "draw":
        mistakes = list(dict.fromkeys(drawn(clone, given.seed, given.count)))
        random.Random(given.seed).shuffle(mistakes)  # so that an unfinished run is a sample, too
        for one in mistakes:
            print(json.dumps(asdict(one)))
    elif given.what == "run":
        run(given, clone)
    else:
        print(*table(given.files), sep="\n")


if __name__ == "__main__":
    print_anything()
    main()
