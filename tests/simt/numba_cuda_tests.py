"""Runs numba-cuda's own tests with every launch in the simulator.

    python -m tests.simt.numba_cuda_tests [--compiled] [test_atomics ...]

prints how many of the kernels launched there are right, and what stops the others. A test that
needs a driver, PTX or another process is skipped. With --compiled, launches run in run_ptx instead.
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
from pathlib import Path
from unittest import mock

from numba import cuda
from numba.cuda import dispatcher
from numba.cuda.cudadrv.error import CudaSupportError

from simt import SimtError, Unsupported, launch
from simt.host import HOST
from simt.jit import remembering
from simt.printing import print_anything
from simt.private_names import CUDADispatcher, normalize_kernel_dimensions
from simt.ptx import PtxError, PtxFault, run_ptx

PACKAGE = "numba.cuda.tests"
FOLDERS = ("cudapy", "doc_examples", "nrt")
# worst last: a kernel is as good as its worst launch
# unseen: only a test that looks at something else launched it; fault: a finding that is true
RANKS = ("unseen", "right", "fault", "unchecked", "unsupported", "finding", "wrong")
UNSEEN, RIGHT, FAULT, UNCHECKED, UNSUPPORTED, FINDING, WRONG = RANKS
# Other processes and threads, files of compiled code, the driver and the compiler's output
SKIPPED = (
    *("caching", "ipc", "multigpu", "multiprocessing", "multithreads", "serialize"),
    *("debuginfo", "debuginfo_types", "inspect", "lineinfo", "libdevice", "warning"),
    *("gufunc", "print", "forall", "cupy_bfloat16_interop", "launch_config_sensitive"),
)
COMPILE = cuda.compile  # run_ptx needs it; the tests are run without
# What these look at is not what a kernel computes: compiled code, caches, types and copies of
# arguments, the words of an error.
ABOUT_THE_HOST = (
    *("test_dump_", "test_explicit_signatures_device", "test_cpu_dispatcher_invalid"),
    *("test_ambiguous_new_version", "test_capture_compile_config", "test_launch_config_"),
    *("test_launch_bounds_", "test_launch_sync", "test_zero_division_error_in_debug"),
    *("test_undefined_var", "test_vote_sync_type_validation", "test_dispatcher_mark"),
    *("test_get_", "const_mode_val", "test_issue_4628", "test_array_in_from_config"),
    *("test_explicit_signatures_ambiguous_resolution", "test_record_in_from_config"),
    "test_user_exception",
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
REPLACED = {name: stand_in for name, stand_in in HOST.items() if "array" in name} | {
    "to_device": HOST["to_device"],
    **dict.fromkeys(("stream", "default_stream", "event"), mock.MagicMock),
    "synchronize": lambda: None,
    "is_available": lambda: False,
    "get_current_device": lambda: mock.MagicMock(compute_capability=(9, 0)),
    "pinned": lambda *arrays: contextlib.nullcontext(),
}
NEEDS_DRIVER = ("compile", "compile_ptx", "compile_for_current_device", "compile_all")
NEEDS_DRIVER += ("current_context", "detect")


def no_driver(*args: object, **options: object) -> None:
    raise unittest.SkipTest("needs a driver or the compiler's output")


def launch_compiled(*launch: object, **options: int) -> None:
    with mock.patch.object(cuda, "compile", COMPILE):
        run_ptx(*launch, **options)


SECONDS = {launch: 5, launch_compiled: 60}  # a test's time limit; compiling takes long


class Outcomes(unittest.TestResult):
    """Notes what becomes of every launch, and of the test that it is part of.

    how       launch, or launch_compiled
    kernels   a kernel's place and name -> (outcome, why) of each test that launches it
    launched  the same of the running test, with its worst launch
    problem   of the running test, apart from its launches
    """

    def __init__(self, how: Callable) -> None:
        super().__init__()
        self.how = how
        self.kernels: dict[tuple, list[tuple[str, str]]] = defaultdict(list)
        self.launched: dict[tuple, tuple[str, str]] = {}
        self.problem: tuple[str, str] | None = None

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.launched, self.problem = {}, None
        signal.setitimer(signal.ITIMER_REAL, SECONDS[self.how], SECONDS[self.how])

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # If a launch raised, the test fails because of that one.
        is_right = all(outcome == RIGHT for outcome, _ in self.launched.values())
        for key, found in self.launched.items():
            if self.problem and is_right:
                is_of_host = any(name in test.id() for name in ABOUT_THE_HOST)
                found = UNSEEN if is_of_host else self.problem[0], self.problem[1]
            self.kernels[key].append(found)
        super().stopTest(test)

    def addFailure(self, test: unittest.TestCase, error: tuple) -> None:
        self.problem = WRONG, _first_line(error[1])

    def addError(self, test: unittest.TestCase, error: tuple) -> None:
        # All but the last belong to one launch; that comes from looking at compiled code.
        of_a_launch = Unsupported | SimtError | PtxError | PtxFault
        if not isinstance(error[1], of_a_launch | CudaSupportError):
            self.problem = UNCHECKED, _first_line(error[1])

    def addSubTest(self, test: object, subtest: object, error: tuple | None) -> None:
        if error:
            is_failure = issubclass(error[0], test.failureException)
            (self.addFailure if is_failure else self.addError)(test, error)

    def launch(self, kernel: CUDADispatcher, *args: object, sizes: tuple, **options: int) -> None:
        code = kernel.py_func.__code__
        key = code.co_filename, code.co_qualname, code.co_firstlineno
        self.launched.setdefault(key, (RIGHT, ""))
        try:
            self.how(kernel, *sizes, *args, **options)
        except (Unsupported, PtxError, TypeError) as error:
            self.launched[key] = UNSUPPORTED, str(error)
            raise
        except (SimtError, PtxFault) as error:
            outcome = FAULT if code.co_qualname.startswith(FAULTY) else FINDING
            self.launched[key] = outcome, str(error)
            raise


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class TooLong(BaseException):
    """No Exception, which the simulator would take as a reason to run blocks one by one."""


def _timed_out(*_: object) -> None:
    raise TooLong("too long")


def patches(outcomes: Outcomes) -> Iterator[object]:
    """What makes numba.cuda launch in the simulator and live without a driver."""

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
    stand_ins = {f"filecheck.{name}": mock.MagicMock() for name in filecheck}
    yield mock.patch.dict(sys.modules, stand_ins)
    from numba.cuda import testing

    yield mock.patch.object(testing, "cc_X_or_above", return_value=True)


def run(outcomes: Outcomes, names: list[str]) -> None:
    """Runs the tests of these modules; of all if there are none."""
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for patch in patches(outcomes):
            stack.enter_context(patch)
        signal.signal(signal.SIGALRM, _timed_out)
        root = Path(importlib.import_module(PACKAGE).__file__).parent
        for file in sorted(f for folder in FOLDERS for f in (root / folder).glob("test_*.py")):
            if file.stem.removeprefix("test_") in SKIPPED or (names and file.stem not in names):
                continue
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                module = f"{PACKAGE}.{file.parent.name}.{file.stem}"
                with contextlib.suppress(Exception):  # what can't be imported needs other packages
                    unittest.defaultTestLoader.loadTestsFromName(module).run(outcomes)


def table(outcomes: Outcomes) -> str:
    worst = {
        key: max(found, key=lambda one: RANKS.index(one[0]))
        for key, found in outcomes.kernels.items()
    }
    lines = [f"{len(worst)} kernels launched"]
    for rank in RANKS:
        whys = [(name, why) for (_, name, _), (outcome, why) in worst.items() if outcome == rank]
        lines.append(f"{len(whys):5} {rank}")
        if rank == UNSUPPORTED:
            missing = Counter(why.splitlines()[0] for _, why in whys)
            lines += [f"      {count:4} {what}" for what, count in missing.most_common()]
        elif rank not in (UNSEEN, RIGHT, FAULT):
            lines += [f"        {name}  {why.splitlines()[0]}" for name, why in whys]
    return "\n".join(lines)


if __name__ == "__main__":
    print_anything()
    names = [argument for argument in sys.argv[1:] if argument != "--compiled"]
    outcomes = Outcomes(launch_compiled if "--compiled" in sys.argv else launch)
    run(outcomes, names)
    print(table(outcomes))
