"""Runs numba-cuda's own tests with every launch in the simulator.

    python -m tests.simt.numba_cuda_tests [-v] [test_atomics ...]

prints how many of the kernels launched there are right, and what stops the others. A test that
needs a driver, PTX or another process is skipped.
"""

import contextlib
import importlib
import io
import signal
import sys
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from numba.cuda.cudadrv.error import CudaSupportError

from simt import SimtError, Unsupported, launch
from simt.host import HOST
from simt.jit import remembering
from simt.printing import print_anything
from simt.private_names import CUDADispatcher, normalize_kernel_dimensions

PACKAGE = "numba.cuda.tests"
FOLDERS = ("cudapy", "doc_examples", "nrt")
# worst last: a kernel is as good as its worst launch
# unseen: only a test that looks at something else launched it; fault: a finding that is true
RANKS = ("unseen", "right", "fault", "unchecked", "unsupported", "finding", "wrong")
UNSEEN, RIGHT, FAULT, UNCHECKED, UNSUPPORTED, FINDING, WRONG = RANKS
# Other processes and threads, files of compiled code, the driver and the compiler's output
SKIPPED = {
    f"test_{name}"
    for name in (
        *("caching", "ipc", "multigpu", "multiprocessing", "multithreads", "serialize"),
        *("debuginfo", "debuginfo_types", "inspect", "lineinfo", "libdevice", "warning"),
        *("gufunc", "print", "forall", "cupy_bfloat16_interop", "launch_config_sensitive"),
    )
}
SECONDS = 5  # a test's time limit


# What these look at is not what a kernel computes: compiled code, caches, types and copies of
# arguments.
ABOUT_THE_HOST = (
    *(
        "test_dump_",
        "test_explicit_signatures_device",
        "test_cpu_dispatcher_invalid",
        "test_ambiguous_new_version",
    ),
    *("test_capture_compile_config", "test_launch_config_", "test_launch_bounds_"),
    *(
        "test_launch_sync",
        "test_zero_division_error_in_debug",
        "test_undefined_var",
        "test_vote_sync_type_validation",
    ),
    *("test_dispatcher_mark", "test_get_", "const_mode_val", "test_issue_4628"),
    *("test_explicit_signatures_ambiguous_resolution", "test_array_in_from_config"),
    "test_record_in_from_config",
    "test_user_exception",  # the words of an error
)
# Each of these has the mistake that is found: all threads write one item, or shared memory is read
# before it is written, or some threads never reach a barrier of the grid, or a syncwarp whose mask
# names them, as in Numba's own reduction.
FAULTY = (
    *("TestException.case_raise_causing_warp_diverge", "TestFastMathOption.test_divf_exception"),
    *("TestFreeVar.test_freevar", "TestCudaInline._test_call", "udt_global_", "useful_syncwarp"),
    *("TestSharedMemoryIssue.test_issue_2393", "TestLaplace.test_ex", "TestSessionization.test_ex"),
    "_gpu_reduce_factory.",  # two lanes wait for a whole warp
)


ARRAYS = {name: stand_in for name, stand_in in HOST.items() if "array" in name}
REPLACED = {
    **ARRAYS,
    "to_device": HOST["to_device"],
    "stream": mock.MagicMock,
    "default_stream": mock.MagicMock,
    "event": mock.MagicMock,
    "synchronize": lambda: None,
    "is_available": lambda: False,
    "get_current_device": lambda: mock.MagicMock(compute_capability=(9, 0)),
    "pinned": lambda *arrays: contextlib.nullcontext(),
}


def no_driver(*args: object, **options: object) -> None:
    raise unittest.SkipTest("needs a driver or the compiler's output")


NEEDS_DRIVER = ("compile", "compile_ptx", "compile_for_current_device", "compile_all")
NEEDS_DRIVER += ("current_context", "detect")


@dataclass
class Kernel:
    """What is known about a kernel after the tests that launch it."""

    name: str
    outcomes: Counter = field(default_factory=Counter)
    why: list[str] = field(default_factory=list)

    @property
    def worst(self) -> str:
        return max(self.outcomes, key=RANKS.index)


class Outcomes(unittest.TestResult):
    """Notes what becomes of every launch, and of the test that it is part of."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[tuple, Kernel] = {}
        self.launched: dict[tuple, tuple[str, str]] = {}
        self.tests: Counter = Counter()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.launched, self.problem = {}, None
        signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for key, (outcome, why) in self.launched.items():
            if outcome == RIGHT and self.problem and not self.stopped:
                outcome, why = self.problem
                if any(name in test.id() for name in ABOUT_THE_HOST):
                    outcome = UNSEEN
            kernel = self.kernels.setdefault(key, Kernel(key[1]))
            kernel.outcomes[outcome] += 1
            if why:
                kernel.why.append(f"{test.id().removeprefix(PACKAGE)}: {why}")
        super().stopTest(test)

    @property
    def stopped(self) -> bool:
        """Did a launch of this test raise? Then the test fails because of that one."""
        return any(outcome != RIGHT for outcome, _ in self.launched.values())

    def addFailure(self, test: unittest.TestCase, error: tuple) -> None:
        self.problem = WRONG, _first_line(error[1])

    def addError(self, test: unittest.TestCase, error: tuple) -> None:
        # The first two belong to one launch; the third comes from looking at compiled code.
        if not isinstance(error[1], Unsupported | SimtError | CudaSupportError):
            self.problem = UNCHECKED, _first_line(error[1])

    def addSubTest(self, test: object, subtest: object, error: tuple | None) -> None:
        if error:
            is_failure = issubclass(error[0], test.failureException)
            (self.addFailure if is_failure else self.addError)(test, error)

    def launch(self, kernel: CUDADispatcher, *args: object, **options: object) -> None:
        code = kernel.py_func.__code__
        key = code.co_filename, code.co_qualname, code.co_firstlineno
        self.launched.setdefault(key, (RIGHT, ""))
        try:
            launch(kernel, *options.pop("sizes"), *args, **options)
        except (Unsupported, TypeError) as error:
            self.launched[key] = UNSUPPORTED, str(error)
            raise
        except SimtError as error:
            outcome = FAULT if code.co_qualname.startswith(FAULTY) else FINDING
            self.launched[key] = outcome, str(error)
            raise


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class TooLong(BaseException):
    """No Exception, which the simulator would take as a reason to run blocks one by one."""


def _timed_out(*_: object) -> None:
    raise TooLong(f"more than {SECONDS} s")


def patches(outcomes: Outcomes) -> Iterator[object]:
    """What makes numba.cuda launch in the simulator and live without a driver."""
    from numba import cuda
    from numba.cuda import dispatcher

    def configure(
        kernel: object, griddim: object, blockdim: object, stream: object = 0, sharedmem: int = 0
    ) -> Callable:
        sizes = normalize_kernel_dimensions(griddim, blockdim)
        return lambda *args: outcomes.launch(kernel, *args, sizes=sizes, shared_bytes=sharedmem)

    def for_all(self: object, *args: object) -> None:
        if self.ntasks:
            block = self.thread_per_block or 128
            self.dispatcher[-(-self.ntasks // block), block, self.stream, self.sharedmem](*args)

    yield mock.patch.multiple(cuda, **REPLACED, **dict.fromkeys(NEEDS_DRIVER, no_driver))
    yield mock.patch.object(cuda, "jit", remembering(cuda.jit))
    yield mock.patch.object(CUDADispatcher, "configure", configure)
    yield mock.patch.object(CUDADispatcher, "compile", no_driver)
    yield mock.patch.object(CUDADispatcher, "specialize", lambda kernel, *args: kernel)
    yield mock.patch.object(dispatcher.ForAll, "__call__", for_all)
    filecheck = ("matcher", "options", "parser", "finput")
    yield mock.patch.dict(
        sys.modules, {f"filecheck.{name}": mock.MagicMock() for name in filecheck}
    )


def run(names: list[str] = ()) -> Outcomes:
    """Runs the tests of these modules; of all if there are none."""
    outcomes = Outcomes()
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for patch in patches(outcomes):
            stack.enter_context(patch)
        from numba.cuda import testing

        stack.enter_context(mock.patch.object(testing, "cc_X_or_above", return_value=True))
        signal.signal(signal.SIGALRM, _timed_out)
        root = Path(importlib.import_module(PACKAGE).__file__).parent
        for file in sorted(f for folder in FOLDERS for f in (root / folder).glob("test_*.py")):
            if file.stem in SKIPPED or (names and file.stem not in names):
                continue
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    module = importlib.import_module(f"{PACKAGE}.{file.parent.name}.{file.stem}")
                except Exception as error:
                    outcomes.tests[f"{file.stem} cannot be imported: {_first_line(error)}"] += 1
                    continue
                unittest.defaultTestLoader.loadTestsFromModule(module).run(outcomes)
    return outcomes


def table(outcomes: Outcomes, verbose: bool) -> str:
    kernels = outcomes.kernels.values()
    by_outcome = defaultdict(list)
    for kernel in kernels:
        by_outcome[kernel.worst].append(kernel)
    lines = [f"{len(kernels)} kernels launched"]
    for outcome in RANKS:
        lines.append(f"{len(by_outcome[outcome]):5} {outcome}")
        if outcome == UNSUPPORTED:
            missing = Counter(k.why[0].split(":", 1)[1].split("\n")[0] for k in by_outcome[outcome])
            lines += [f"      {count:4} {what}" for what, count in missing.most_common()]
        elif outcome not in (UNSEEN, RIGHT, FAULT):
            lines += [f"        {k.name}  {k.why[0].splitlines()[0]}" for k in by_outcome[outcome]]
    lines += map(str, outcomes.tests)
    if verbose:
        lines += [f"{k.name}: {k.worst}\n{why}" for k in kernels for why in k.why]
    return "\n".join(lines)


if __name__ == "__main__":
    print_anything()
    arguments = sys.argv[1:]
    print(table(run([a for a in arguments if a[0] != "-"]), "-v" in arguments))
