"""A marker per stage (`pytest -m kv_cache`), profiles (`pytest --rest`), a browser, ranks."""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import profiles
from tests.simt.fixtures import browser, chromium_path, interrupts_arrive, read_page

__all__ = ["browser", "chromium_path", "interrupts_arrive", "read_page"]  # pytest looks for them

ROOT = Path(__file__).parent.parent

# At level 1, LLVM takes two thirds of the time of level 3 to compile for the CPU, and the results
# are the same. What it compiled is kept apart from readers' kernels, which should be fast.
FAST_TO_COMPILE = {"NUMBA_OPT": "1", "NUMBA_CACHE_DIR": str(ROOT / "build" / "numba")}
# New objects between two searches for garbage: compiling makes millions that stay. Not for all
# tests, because garbage of some holds large arrays.
RARELY = 50_000
# The files that take longest, so that no worker begins one of them at the end.
FIRST = (
    *("test_notebooks.py", "test_ptx_stages.py", "test_wrong.py", "test_window_assignment.py"),
    *("test_ladder.py", "test_exercises.py", "test_engine_failures.py", "test_mutants.py"),
)


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: there is no garbage to find
    os.environ["PYTHONUTF8"] = "1"  # what other processes print is read as UTF-8
    if profiles.chosen(config) == "quick":
        os.environ.update(FAST_TO_COMPILE)  # before Numba is imported, which reads it
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if is_worker or not config.getoption("tx", None):  # who only starts workers needs none of it
        configure_tests(config)


def configure_tests(config: pytest.Config) -> None:
    import torch

    from pa_tutorial.checks.ladder import STAGES

    # Workers share the cores, and so do the notebooks that they run. A single process has them to
    # itself, but for small tensors two threads wait for each other more than they compute.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    for stage in STAGES.values():
        config.addinivalue_line("markers", f"{stage.name}: verifies the stage {stage.name}")
    config.addinivalue_line("markers", "block_manager: verifies the memory manager")
    config.addinivalue_line("markers", "engine: verifies the serving engine")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("profiles", "by default: the checks that show a clone works")
    group.addoption("--rest", action="store_true", help="run what is marked `rest` instead")
    group.addoption("--hours", action="store_true", help="run the sweeps instead: they take hours")


def pytest_report_header(config: pytest.Config) -> str:
    return f"profile: {profiles.chosen(config)} (quick; `pytest --rest`, `pytest --hours`)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m NAME` imports only files with that mark, or with tests of all stages: the others
    would take longer than the tests of a stage.

    With `-m gpu`, the others may need what that machine lacks.
    """
    from pa_tutorial.checks.ladder import STAGES

    name = config.option.markexpr
    if not name.isidentifier() or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    by_name = name in STAGES and "getattr(pytest.mark," in text
    named = any(words in text for words in (f'"{name}"', "STAGES.values()"))
    return None if (by_name and named) or f"pytest.mark.{name}" in text else True


@pytest.hookimpl(tryfirst=True)  # before options such as -k deselect any test of a file
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from tests import absent

    profiles.select(config, items)
    items.sort(key=lambda item: (*FIRST, item.path.name).index(item.path.name))
    for item in items:
        needed = [what for mark in item.iter_markers("needs") for what in mark.args]
        needed += ["Triton"] if item.get_closest_marker("triton") else []
        needed += ["a GPU"] if item.get_closest_marker("gpu") else []
        for why in filter(None, map(absent.reason, needed)):
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_collection_finish(session: pytest.Session) -> None:
    """All tests stay until the end, so Python needn't search them for garbage again and again."""
    if "hypothesis" not in sys.modules:  # no test draws; for its summary, it would be imported
        session.config.pluginmanager.unregister(name="hypothesispytest")
    if numba := sys.modules.get("numba"):  # the stages in torch don't need it
        numba.set_num_threads(1)
    gc.freeze()
    if profiles.chosen(session.config) == "quick":
        gc.set_threshold(RARELY)
    gc.enable()


def pytest_unconfigure() -> None:
    atexit.register(gc.unfreeze)  # libraries complain about objects that are never freed


@pytest.fixture(scope="module")
def ranks_of() -> Iterator[Callable]:
    """ranks_of(2): two ranks, which a module's tests share until one of them ends the ranks."""
    from pa_tutorial.distributed.ranks import Ranks

    pools: dict[int, Ranks] = {}

    def get(num_ranks: int) -> Ranks:
        if num_ranks not in pools or not pools[num_ranks].launcher.is_alive():
            pools[num_ranks] = Ranks(num_ranks)
        return pools[num_ranks]

    yield get
    for ranks in pools.values():
        ranks.close()


@pytest.fixture(scope="session")
def reference_html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The microscope's page of the paged kernel, at the sizes of vLLM's document."""
    from pa_tutorial.viz.paged_panes import run_microscope
    from tests.viz.microscope_pages import reference

    path = tmp_path_factory.mktemp("pages") / "reference.html"
    run_microscope(reference()).save_html(path)
    return path
