"""Loads the wrong examples of tests/wrong/: one mistake of each kind, made in our own code.

wrong/<room>.toml has those whose first change is in that room, each in a table:

    [cache_overwritten]
    why = "one sentence: what is wrong, and what it does to the result"
    file = "pa_tutorial/attention/cached.py"
    function = "append"               # optional, as is mark: see with_changed_line
    old = "self.seq_len = end"        # one line of code, or a piece of one
    new = "self.seq_len = start"
    found_by = "race"                 # only if no result is wrong but the simulator stops the
                                      # kernel: which of its checks must find it, in every case

    fails.kv_cache = ["sequence/two_layers"]  # stage, block_manager, engine, simt, cache_writes,
                                      # triton_launch or distributed = what must catch it: cases,
                                      # stories, scenes, kernels of tests/simt/kernels, or trials of
                                      # cache_trials.py, triton_trials.py, distributed_trials.py
    passes.kv_cache = ["sequence/one_token"]  # the control: what it must not disturb

For a mistake that needs more than one line, there are several tables [[cache_overwritten.change]].
"""

import importlib
import math
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from pa_tutorial.checks.block_manager_check import BLOCK_MANAGER
from pa_tutorial.checks.engine_check import ENGINE
from pa_tutorial.checks.prefix_cache_check import PREFIX_CACHE
from pa_tutorial.exercises.changed_line import with_changed_line
from pa_tutorial.kernels.sources import FILES
from pa_tutorial.kernels.template import FLOAT8
from simt.twins import TWINS
from tests import cache_trials, triton_trials
from tests.cache_trials import CACHE_WRITES
from tests.distributed_trials import DISTRIBUTED, run_on_ranks
from tests.simt.helpers import wrong_counts
from tests.simt.kernels.example import EXAMPLES, FAULTS
from tests.triton_trials import TRITON_LAUNCH

ROOT = Path(__file__).parent.parent
PACKAGES = ("pa_tutorial", "simt")
FOLDER = Path(__file__).with_name("wrong")
SIMT = "simt"
TRIALS = {  # what says itself what is wrong
    CACHE_WRITES: lambda name: cache_trials.TRIALS[name](),
    TRITON_LAUNCH: lambda name: triton_trials.TRIALS[name](),
    DISTRIBUTED: run_on_ranks,
}
KERNELS = "pa_tutorial/kernels"
KERNEL_FILES = {f"{KERNELS}/{name}.py" for name in (*sum(FILES.values(), ()), FLOAT8)}
CPU_KERNEL = f"{KERNELS}/cpu/kernel.py"


@dataclass(frozen=True)
class WrongExample:
    """fails and passes hold (stage, case id).

    changes   file, old, new and, optionally, function and mark of each
    found_by  the check of the simulator that must find it; None: a result is wrong
    """

    name: str
    why: str
    changes: tuple[Mapping[str, str], ...]
    fails: tuple[tuple[str, str], ...]
    passes: tuple[tuple[str, str], ...]
    found_by: str | None = None

    def sources(self) -> dict[str, str]:
        """File -> its text with the changes made. Raises ValueError if one has lost its place."""
        texts: dict[str, str] = {}
        for change in self.changes:
            place = dict(change)
            file = place.pop("file")
            text = texts.get(file) or (ROOT / file).read_text(encoding="utf-8")
            texts[file] = with_changed_line(text, **place)
        return texts


def load_examples() -> list[WrongExample]:
    """By name: the order of the tests."""
    texts = [path.read_text(encoding="utf-8") for path in FOLDER.glob("*.toml")]
    tables = [item for text in texts for item in tomllib.loads(text).items()]
    return sorted((_example(*item) for item in tables), key=lambda example: example.name)


def _example(name: str, table: dict[str, Any]) -> WrongExample:
    place = {k: table[k] for k in ("file", "function", "mark", "old", "new") if k in table}
    changes = tuple(place | change for change in table.get("change", [{}]))
    fails, passes = (
        tuple((stage, case) for stage, cases in table[part].items() for case in cases)
        for part in ("fails", "passes")
    )
    return WrongExample(name, table["why"], changes, fails, passes, table.get("found_by"))


class _ChangedFinder:
    """Finds the changed modules, in files of a folder; everything else is found as always."""

    def __init__(self, sources: dict[str, str], folder: Path) -> None:
        self._sources = sources
        self._files = {module_name(file): folder / file for file in sources}
        for file, text in sources.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self._files[name]) if name in self._files else None


def module_name(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts)


def _package_modules() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] in PACKAGES]


@contextmanager
def applied(example: WrongExample) -> Iterator[None]:
    """Inside, importing our packages gives second ones that have the changes."""
    sources = example.sources()  # first: it may refuse the example
    kept = {name: sys.modules.pop(name) for name in _package_modules()}
    with TemporaryDirectory() as name:
        folder = Path(name)
        finder = _ChangedFinder(sources, folder)
        sys.meta_path.insert(0, finder)
        try:
            if KERNEL_FILES & sources.keys():
                read_kernels_in(folder)
            if CPU_KERNEL in sources:
                compile_quickly(importlib.import_module(module_name(CPU_KERNEL)))
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in _package_modules():
                del sys.modules[name]
            sys.modules.update(kept)


def read_kernels_in(folder: Path) -> None:
    """Let sources.py, which reads the kernels' files, find them beside the changed ones."""
    for file in KERNEL_FILES:
        if not (folder / file).exists():
            shutil.copy(ROOT / file, folder / file)
    importlib.import_module(module_name(f"{KERNELS}/sources.py")).FOLDER = folder / KERNELS


def compile_quickly(cpu_kernel: ModuleType) -> None:
    """For one core, which takes a third of the time; and nothing is kept on disk."""
    cpu_kernel.COMPILED["parallel"] = False
    cpu_kernel.kept = lambda compiling, function: compiling()(function)


@dataclass(frozen=True)
class Outcome:
    """error is that of `quantity`: of the output, unless only an intermediate is wrong; inf if
    the stage did what none may do, and None if it raised."""

    passed: bool
    error: float | None
    report: str
    quantity: str = "out"

    @property
    def found_by(self) -> str | None:
        """The check of the simulator that stopped the stage, if one did."""
        stopped = re.match(r"it raised SimtError: (\w+):", self.report)
        return stopped and stopped[1]


def run_cases(pairs: tuple[tuple[str, str], ...]) -> dict[tuple[str, str], Outcome]:
    """Run (stage, case) pairs on whatever our packages are now.

    Also ("block_manager", story), ("prefix_cache", story), ("engine", scene), ("simt", kernel), and
    the trials of "cache_writes", "triton_launch" and "distributed".
    """
    return {(stage, case_id): run_case(stage, case_id) for stage, case_id in pairs}


def run_case(stage: str, case_id: str) -> Outcome:
    if stage == SIMT:
        return run_kernel(case_id)
    if stage in TRIALS:
        wrong = TRIALS[stage](case_id)
        return Outcome(not wrong, math.inf if wrong else 0.0, wrong)
    running = importlib.import_module("pa_tutorial.checks.running")
    if stage == BLOCK_MANAGER:
        checks = importlib.import_module("pa_tutorial.checks.block_manager_check")
        trial = checks.story_trial(case_id)
    elif stage == PREFIX_CACHE:
        trial = importlib.import_module("pa_tutorial.checks.prefix_cache_check").prefix_trial(
            case_id
        )
    elif stage == ENGINE:
        trial = importlib.import_module("pa_tutorial.checks.engine_check").scene_trial(case_id)
    else:  # the stages before it are changed too, and would take as long again
        stages = importlib.import_module("pa_tutorial.checks.ladder").STAGES
        trial = running.stage_trial(stages[stage], case_id)
        trial = replace(trial, references={"the oracle": trial.references["the oracle"]})
    case, comparisons = running.judge(trial, None)
    wrong = [c.quantity for c in comparisons if not c.passed]  # in order of computation
    error = math.inf if case.refused else case.error
    return Outcome(case.passed, error, case.diagnosis, wrong[-1] if wrong else "out")


def run_kernel(name: str) -> Outcome:
    """A kernel of tests/simt/kernels in whatever simt is now.

    A right kernel passes if it gives its answer, nothing is found, and its accesses cost what is
    recorded; a faulty one if the check that should find the fault does. Else the error is infinite.
    """
    simt = importlib.import_module("simt")
    importlib.import_module("simt.twins").TWINS.update(TWINS)
    kernel = EXAMPLES.get(name) or FAULTS[name]
    args = kernel.draw()
    try:
        where = kernel.kernel, kernel.grid, kernel.block
        # Without a trace, a fault must be found where thread blocks run side by side, too.
        blocks = None if name in FAULTS else "all"
        trace = simt.launch(*where, *args, shared_bytes=kernel.shared_bytes, trace=blocks).trace
    except simt.SimtError as error:
        found = name in FAULTS and error.finding.check == kernel.check
        return Outcome(found, 0.0 if found else math.inf, str(error))
    except Exception as error:  # a wrong simulator may lose its way altogether
        return Outcome(False, math.inf, f"it raised {error!r}")
    if name in FAULTS:
        return Outcome(False, math.inf, "nothing was found")
    wrong = wrong_counts(simt, name, trace)
    right = not wrong and all(
        np.allclose(args[position], expected, rtol=kernel.rtol, atol=0, equal_nan=True)
        for position, expected in kernel.answer(*kernel.draw()).items()
    )
    return Outcome(right, 0.0 if right else math.inf, "\n".join(wrong) or "the answer")
