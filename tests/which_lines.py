"""Which tests run which line of our code: a plugin for pytest, measured with coverage.py.

    pip install coverage
    python -m pytest -n auto --dist loadfile -p tests.which_lines

It writes build/lines/: lines and the tests that ran them, and how long each test took. Processes
that a test starts are measured, too. Under measurement some tests of speed fail; that is no matter.
"""

import ast
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = ROOT / "build" / "lines"
SETTINGS = f"""[run]
data_file = {LINES}/data
parallel = true
source = {ROOT}/simt
    {ROOT}/pa_tutorial
context = ${{PYTEST_CURRENT_TEST}}
concurrency = thread
    greenlet
patch = _exit
disable_warnings = no-data-collected
    module-not-measured
"""
PHASE = re.compile(r" \((setup|call|teardown)\)$")  # as pytest names it to other processes
BEFORE_TESTS = ""  # the context of what runs while tests are collected
seconds: dict[str, float] = defaultdict(float)


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        LINES.mkdir(parents=True, exist_ok=True)
        (LINES / "settings").write_text(SETTINGS, encoding="utf-8")
        return
    from coverage import Coverage

    os.environ["PYTEST_CURRENT_TEST"] = BEFORE_TESTS
    os.environ["COVERAGE_PROCESS_START"] = str(LINES / "settings")  # for processes of tests
    config.measured = Coverage(config_file=str(LINES / "settings"), data_suffix=True)
    config.measured.start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.config.measured.switch_context(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] += float("inf") if report.failed else report.duration


def pytest_unconfigure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    config.measured.stop()
    config.measured.save()
    worker = os.environ["PYTEST_XDIST_WORKER"]
    (LINES / f"seconds-{worker}.json").write_text(json.dumps(seconds), encoding="utf-8")


class Lines:
    """What was measured in a clone."""

    def __init__(self, clone: Path) -> None:
        from coverage import CoverageData

        self.clone = clone
        self.seconds: dict[str, float] = {}
        for file in (clone / "build" / "lines").glob("seconds-*"):
            self.seconds |= json.loads(file.read_text(encoding="utf-8"))
        self.tests_of: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for data in map(CoverageData, map(str, (clone / "build" / "lines").glob("data.*"))):
            data.read()
            for file in data.measured_files():
                name = Path(file).relative_to(clone).as_posix()
                for line, contexts in data.contexts_by_lineno(file).items():
                    tests = {PHASE.sub("", context) for context in contexts}
                    self.tests_of[name][line] |= tests & self.seconds.keys()

    def tests(self, file: str, line: int) -> dict[str, float]:
        """The tests that run a line, or else its function, or else its file -> seconds.

        Kernels are read by the simulator, not run by Python: for them, the file counts.
        """
        tree = ast.parse((self.clone / file).read_text(encoding="utf-8"))
        measured = self.tests_of[file]
        for lines in (*around(tree, line), measured):
            if found := set().union(*(measured.get(one, ()) for one in lines)):
                break
        return {test: self.seconds[test] for test in found if self.seconds[test] < float("inf")}


def around(tree: ast.Module, line: int) -> Iterator[range]:
    """The lines of the statement at a line, then those of the functions around it."""
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno
    ]
    inside.sort(key=lambda node: node.end_lineno - node.lineno)
    if inside:
        first = getattr(inside[0], "body", None)
        end = first[0].lineno if first else inside[0].end_lineno + 1
        yield range(inside[0].lineno, end)
    for node in inside:
        if isinstance(node, ast.FunctionDef):
            yield range(node.lineno + 1, node.end_lineno + 1)
