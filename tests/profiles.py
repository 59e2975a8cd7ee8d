"""Which tests a run has: `pytest` the checks that show a clone works, `pytest --rest` the others.

A test says itself when it is one of the others:

    @pytest.mark.rest("test_ladder.py")  # what catches the same mistakes in `pytest`
    @pytest.mark.rest(keep=["sm_90", "int64-*"])  # all parameters but these, which catch them
    pytest.param(40, marks=pytest.mark.rest)  # one parameter, whose mistakes nothing else catches

`keep` has ids of parameters as they stand in the brackets of a test's id; * is any text.

A test that takes hours is marked `hours` (`pytest --hours`); one with CUDA tensors is marked `gpu`
(`pytest -m gpu`). A test named with `::` on the command line runs in any case.
"""

from collections import defaultdict
from collections.abc import Collection
from fnmatch import fnmatchcase

import pytest

UNUSED = pytest.StashKey[list[str]]()  # each `keep` that fits no parameter of its test
QUICK = pytest.StashKey[set[str]]()  # the tests of the collected files that `pytest` runs


def chosen(config: pytest.Config) -> str:
    """The profile of this run: quick, rest, hours or gpu."""
    if config.option.markexpr.startswith("gpu"):
        return "gpu"
    return next((name for name in ("hours", "rest") if config.getoption(f"--{name}")), "quick")


def keeps(item: pytest.Item) -> dict[str, bool]:
    """Each `keep` of a test, and whether it fits the test's parameters."""

    def kept(seen_by: str = "", keep: Collection[str] = ()) -> Collection[str]:
        return keep

    parameters = item.nodeid.partition("[")[2].removesuffix("]")
    names = [name for mark in item.iter_markers("rest") for name in kept(*mark.args, **mark.kwargs)]
    return {name: fnmatchcase(parameters, name) for name in names}


def profile_of(item: pytest.Item) -> str:
    names = ["hours", "gpu"] if any(keeps(item).values()) else ["hours", "gpu", "rest"]
    return next((name for name in names if item.get_closest_marker(name)), "quick")


def unused(items: list[pytest.Item]) -> list[str]:
    """Each `keep` that fits no parameter of its test, as `test_file.py::test_name[keep]`."""
    fits: dict[str, bool] = defaultdict(bool)
    for item in items:
        for keep, is_fit in keeps(item).items():
            fits[f"{name_of(item).partition('[')[0]}[{keep}]"] |= is_fit
    return [name for name, is_fit in fits.items() if not is_fit]


def name_of(item: pytest.Item) -> str:
    """The id without its folder: no two files have the same name."""
    file, colons, test = item.nodeid.partition("::")
    return file.rpartition("/")[2] + colons + test


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests of the chosen profile in `items`."""
    profiles = {item: profile_of(item) for item in items}
    config.stash[QUICK] = {name_of(item) for item in items if profiles[item] == "quick"}
    if any("::" in arg for arg in config.args):
        return
    config.stash[UNUSED] = unused(items)
    left_out = [item for item in items if profiles[item] != chosen(config)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if profiles[item] == chosen(config)]
