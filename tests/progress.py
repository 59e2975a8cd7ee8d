"""How far the tests are, in a line every 20 seconds: "1:40 of about 4:10, 38 % (test_ladder.py)".

seconds.json holds what each file took on one core when it was last measured, for each profile:
`pytest --write-seconds`. By it the estimate is made, and the longest files come first, so that all
workers end together.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("seconds.json")
EVERY = 20  # seconds
UNKNOWN = 1.0  # seconds of a file that has not been measured
EARLY = 0.05  # of the work: until then, the estimate is what was measured


def file_of(node_id: str) -> str:
    return node_id.partition("::")[0].rpartition("/")[2]


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def measured(profile: str) -> dict[str, float]:
    return json.loads(FILE.read_text(encoding="utf-8")).get(profile, {})


def longest_first(profile: str) -> Callable[[pytest.Item], float]:
    """A key by which tests are sorted; those of a file stay as they are."""
    seconds = measured(profile)
    return lambda item: -seconds.get(file_of(item.nodeid), UNKNOWN)


class Progress:
    """A plugin of pytest, in the process that reports: under xdist, that of no test."""

    def __init__(self, config: pytest.Config, profile: str) -> None:
        self.profile, self.measured = profile, measured(profile)
        self.writes = config.getoption("--write-seconds")
        self.workers = config.getoption("numprocesses", None) or 1
        self.plugins = config.pluginmanager
        self.took: Counter[str] = Counter()
        self.costs: dict[str, float] = {}  # file -> seconds for each of its tests
        self.done = self.whole = 0.0
        self.begin = self.said = time.monotonic()

    def expect(self, node_ids: Iterable[str]) -> None:
        counts = Counter(map(file_of, node_ids))
        files = {file: self.measured.get(file, UNKNOWN) for file in counts}
        self.costs = {file: files[file] / counts[file] for file in counts}
        self.whole = sum(files.values())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.expect(ids)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dot: what passes is in the line."""
        quiet = report.skipped or (report.passed and report.when == "call")
        return (report.outcome, "", "") if quiet else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self.took[file] += report.duration
        if report.when == "teardown":
            self.done += self.costs.get(file, 0.0)
        if time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            terminal = self.plugins.getplugin("terminalreporter")
            terminal.write_line(self.line(self.said - self.begin, file))
            terminal.flush()

    def line(self, seconds: float, file: str) -> str:
        share = self.done / self.whole
        about = seconds / share if share > EARLY else max(self.whole / self.workers, seconds)
        return f"{clock(seconds)} of about {clock(about)}, {share:.0%} ({file})".replace("%", " %")

    def pytest_sessionfinish(self) -> None:
        if self.writes:
            known = json.loads(FILE.read_text(encoding="utf-8"))
            known[self.profile] = {f: round(s, 1) for f, s in self.took.most_common()}
            FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
