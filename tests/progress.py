"""How far the tests are, in a line every 20 seconds: "1:40 of about 4:10, 40 % (test_ladder.py)".

seconds.json holds what each file takes on one core, as `pytest --write-seconds` measured it.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("seconds.json")
EVERY = 20  # seconds
UNKNOWN = 1.0  # seconds of a file that has not been measured


def file_of(node_id: str) -> str:
    return node_id.partition("::")[0].rpartition("/")[2]


def measured() -> dict[str, dict[str, float]]:
    """Profile -> file -> seconds."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def line(seconds: float, planned: float, share: float, file: str) -> str:
    """planned: seconds in all, as measured before; share: of the work that is done."""
    about = seconds + (1 - share) * planned
    clock = "{:.0f}:{:02.0f}".format
    passed, whole = (clock(*divmod(int(time), 60)) for time in (seconds, about))
    return f"{passed} of about {whole}, {100 * share:.0f} % ({file})"


class Progress:
    """A plugin of pytest, in the process that reports: under xdist, that of no test."""

    def __init__(self, config: pytest.Config, profile: str) -> None:
        self.config, self.profile = config, profile
        self.took: Counter[str] = Counter()
        self.costs: dict[str, float] = {}  # file -> seconds for each of its tests
        self.done = self.whole = 0.0
        self.begin = self.said = time.monotonic()

    def expect(self, node_ids: Iterable[str]) -> None:
        known, counts = measured().get(self.profile, {}), Counter(map(file_of, node_ids))
        self.costs = {file: known.get(file, UNKNOWN) / counts[file] for file in counts}
        self.whole = sum(known.get(file, UNKNOWN) for file in counts)

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
        self.done += self.costs.get(file, 0.0) * (report.when == "teardown")
        if time.monotonic() - self.said < EVERY:
            return
        self.said = time.monotonic()
        planned = self.whole / (self.config.getoption("numprocesses", None) or 1)
        terminal = self.config.pluginmanager.getplugin("terminalreporter")
        terminal.write_line(line(self.said - self.begin, planned, self.done / self.whole, file))
        terminal.flush()

    def pytest_sessionfinish(self) -> None:
        if self.config.getoption("--write-seconds"):
            seconds = {file: round(took, 1) for file, took in self.took.most_common()}
            known = measured()
            known[self.profile] = known.get(self.profile, {}) | seconds
            text = json.dumps(known, indent=1)
            FILE.write_text(text + "\n", encoding="utf-8")
