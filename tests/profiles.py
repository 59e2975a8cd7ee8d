"""Which tests a run has: `pytest` what a clone is trusted by, `pytest --rest` the others.

rest.toml lists the others. The name of an entry is how the ids of its tests begin:

    ["test_cpu_steps.py::test_step_is_attention"]
    keep = ["test_cpu_steps.py::test_step_is_attention[tails-online]"]  # all but these
    seconds = 7                                # on one core
    seen_by = "what sees the same mistakes in `pytest`"

What takes hours is marked `hours` where it stands: `pytest --hours`; what has CUDA tensors is
marked `gpu`: `pytest -m gpu`. A test that is named with `::` runs in any case.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("rest.toml")
UNUSED = pytest.StashKey[list[str]]()  # beginnings in rest.toml that no test has
QUICK = pytest.StashKey[set[str]]()  # what `pytest` runs of the files that are collected


@dataclass(frozen=True)
class Entry:
    begins: str
    seconds: float
    seen_by: str
    keep: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return self.begins.partition("::")[0]

    def has(self, name: str) -> bool:
        return name.startswith(self.begins) and not name.startswith(self.keep)


def load() -> list[Entry]:
    listed = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return [
        Entry(begins, said["seconds"], said["seen_by"], tuple(said.get("keep", ())))
        for begins, said in listed.items()
    ]


def chosen(config: pytest.Config) -> str:
    """Which of the four this run is: quick, rest, hours or gpu."""
    if config.option.markexpr.startswith("gpu"):
        return "gpu"
    return next((name for name in ("hours", "rest") if config.getoption(f"--{name}")), "quick")


def profile_of(item: pytest.Item, entries: list[Entry]) -> str:
    for name in ("hours", "gpu"):
        if item.get_closest_marker(name):
            return name
    left = any(entry.has(name_of(item)) for entry in entries)
    return "rest" if left else "quick"


def name_of(item: pytest.Item) -> str:
    """Without its folder: no two files have the same name."""
    file, colons, test = item.nodeid.partition("::")
    return file.rpartition("/")[2] + colons + test


def unused(entries: list[Entry], names: Iterable[str]) -> list[str]:
    """Beginnings in rest.toml that no test has, of the files that have been collected."""
    names = list(names)
    files = {name.partition("::")[0] for name in names}
    judged = [e for e in entries if e.file in files or not any(FILE.parent.rglob(e.file))]
    begins = [begin for entry in judged for begin in (entry.begins, *entry.keep)]
    return [begin for begin in begins if not any(name.startswith(begin) for name in names)]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave in `items` those of the profile that was chosen."""
    entries = load()
    profiles = {item: profile_of(item, entries) for item in items}
    config.stash[QUICK] = {name_of(item) for item in items if profiles[item] == "quick"}
    names_tests = any("::" in arg for arg in config.args)
    config.stash[UNUSED] = [] if names_tests else unused(entries, map(name_of, items))
    if names_tests:
        return
    left_out = [item for item in items if profiles[item] != chosen(config)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if profiles[item] == chosen(config)]
