"""Which tests a run has: `pytest` the checks that show a clone works, `pytest --rest` the others.

rest.toml lists the others. The name of an entry is how the ids of its tests begin:

    ["test_ladder.py::test_stage_is_right[cpu-"]
    keep = ["test_ladder.py::test_stage_is_right[cpu-decode/gqa]"]  # all but these
    seconds = 7                                # on one core
    seen_by = "what catches the same mistakes in `pytest`"

A test that takes hours is marked `hours` (`pytest --hours`); one with CUDA tensors is marked `gpu`
(`pytest -m gpu`). A test named with `::` on the command line runs in any case.
"""

import tomllib
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("rest.toml")
NAMES = pytest.StashKey[list[str]]()  # of all tests in the files that were collected
QUICK = pytest.StashKey[set[str]]()  # the tests of the collected files that `pytest` runs


def load() -> dict[str, dict]:
    """Beginning of ids -> its entry."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def chosen(config: pytest.Config) -> str:
    """The profile of this run: quick, rest, hours or gpu."""
    if config.option.markexpr.startswith("gpu"):
        return "gpu"
    return next((name for name in ("hours", "rest") if config.getoption(f"--{name}")), "quick")


def waits(name: str, entries: dict[str, dict]) -> bool:
    """Whether a test is left to `pytest --rest`."""
    begun = (entry for begins, entry in entries.items() if name.startswith(begins))
    return any(not name.startswith(tuple(entry.get("keep", ()))) for entry in begun)


def profile_of(item: pytest.Item, entries: dict[str, dict]) -> str:
    for name in ("hours", "gpu"):
        if item.get_closest_marker(name):
            return name
    return "rest" if waits(name_of(item), entries) else "quick"


def name_of(item: pytest.Item) -> str:
    """The id without its folder: no two files have the same name."""
    file, colons, test = item.nodeid.partition("::")
    return file.rpartition("/")[2] + colons + test


def unused(entries: dict[str, dict], names: list[str]) -> list[str]:
    """Beginnings in rest.toml that fit no test, among the files that were collected."""
    collected = {name.partition("::")[0] for name in names}
    begins = [begin for one in entries for begin in (one, *entries[one].get("keep", ()))]
    files = {begin: begin.partition("::")[0] for begin in begins}
    begins = [b for b in begins if files[b] in collected or not any(FILE.parent.rglob(files[b]))]
    return [begin for begin in begins if not any(name.startswith(begin) for name in names)]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests of the chosen profile in `items`."""
    entries = load()
    profiles = {item: profile_of(item, entries) for item in items}
    config.stash[QUICK] = {name_of(item) for item in items if profiles[item] == "quick"}
    names_tests = any("::" in arg for arg in config.args)
    config.stash[NAMES] = [] if names_tests else list(map(name_of, items))
    if not names_tests:
        left_out = [item for item in items if profiles[item] != chosen(config)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if profiles[item] == chosen(config)]
