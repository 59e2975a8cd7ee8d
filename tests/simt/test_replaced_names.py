"""Numba's names after simulate(): which are replaced, and for how long: never by an import."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from numba import cuda

from simt import SimtError, launch, simulate
from simt import cuda as simt_cuda
from simt.host import simulated
from simt.private_names import PLACE, CUDADispatcher
from simt.simulate import innermost
from tests.simt.helpers import kernel

NUMBAS = [(cuda, "jit"), (CUDADispatcher, "configure"), (CUDADispatcher, "forall")]
ORIGINALS = {(where, name): getattr(where, name) for where, name in NUMBAS}
NONE, ALL = [], ["jit", "configure", "forall"]
SIGNATURE = "void(int32[:], int32)"
OUT = np.zeros(1, np.int32)


def replaced() -> list[str]:
    """The names that aren't Numba's now."""
    return [name for (where, name), numbas in ORIGINALS.items() if getattr(where, name) != numbas]


# Run in a process of its own. Numba fills its tables when it first compiles something.
IMPORT_ALL = """
import os, pkgutil, signal, sys, warnings
from contextlib import suppress
from importlib import import_module

import numba.cuda.dispatcher, numpy
numba.njit("int64(int64)")(lambda x: x)

def objects():
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in ("numba", "numba_cuda", "numpy", "builtins", "linecache"):
            for key, value in [*vars(module).items()]:
                yield (name, key), value
                if isinstance(value, type) and value.__module__.startswith("numba"):
                    yield from (((name, key, member), one) for member, one in vars(value).items())

def settings():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return [*warnings.filters], [*sys.path], dict(os.environ), handlers, str(numpy.geterr())

before, settings_before = dict(objects()), settings()
for package in ("simt", "simt.ptx"):
    for file in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        with suppress(ImportError):  # of what comes with extras
            import_module(file.name)
after = dict(objects())
print("imported", {"simt.host", "simt.ptx.machine"} <= {*sys.modules}, len(before) > 10_000)
print("changed", [name for name, value in before.items() if after.get(name) is not value])
print("settings", settings() == settings_before)
"""


def test_importing_changes_nothing_in_the_process() -> None:
    command = [sys.executable, "-c", IMPORT_ALL]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "imported True True\nchanged []\nsettings True\n", done.stderr


@pytest.mark.parametrize("block", [simulate, simulated])
def test_a_block_puts_numbas_names_back_after_an_error_too(block: Callable) -> None:
    with suppress(ZeroDivisionError), block():
        with block(trace=0):
            assert replaced() == ALL
        assert replaced() == ALL
        raise ZeroDivisionError
    assert replaced() == NONE
    assert innermost() == (None, {})


def test_a_simulate_without_a_block_holds_after_other_blocks() -> None:
    with simulate(trace=2):  # so that this test ends it
        simulate(trace=0)
        with simulate(trace=1):
            pass
        with simulated():
            pass
        assert innermost() == (None, {"trace": 0})
        assert replaced() == ALL
    assert replaced() == NONE
    assert innermost() == (None, {})


def entered(block: AbstractContextManager) -> AbstractContextManager:
    block.__enter__()
    return block


@pytest.mark.parametrize("block", [simulate, simulated])
def test_blocks_may_end_in_any_order(block: Callable) -> None:
    """As they do in two threads."""
    first, second = entered(block(trace=0)), entered(block(trace=1))
    first.__exit__(None, None, None)
    assert replaced() == ALL
    assert innermost() == (None, {"trace": 1})
    second.__exit__(None, None, None)
    assert replaced() == NONE
    if block is simulate:  # one object may have two blocks
        with first:
            assert innermost() == (None, {"trace": 0})
        assert replaced() == NONE


def leading_zeros(out, n):
    """2**20 has 11 leading zeros in 32 bits, and 43 in 64."""
    out[0] = cuda.clz(n)


def test_a_kernel_with_a_signature_is_defined_in_a_block_and_launched_anywhere() -> None:
    with simulate():
        signed = cuda.jit(SIGNATURE)(leading_zeros)
        signed[1, 1](OUT, 2**20)
        assert OUT == 11
    launch(signed, 1, 1, OUT, 2**21)
    assert OUT == 10
    launch(leading_zeros, 1, 1, OUT, 2**20)  # a plain function has no signature
    assert OUT == 43
    simt_cuda.jit(SIGNATURE)(leading_zeros)[1, 1](OUT, 2**20)
    assert OUT == 11
    assert replaced() == NONE


@pytest.mark.needs("numba-cuda")
def test_signatures_that_numba_compiled_before_simulate_count() -> None:
    """Where there is a GPU; here Numba is only told so."""
    device = SimpleNamespace(compute_capability=(9, 0))
    context = SimpleNamespace(device=device)
    with (
        mock.patch(PLACE["get_current_device"], return_value=device),
        mock.patch("numba.cuda.cudadrv.devices.get_context", return_value=context),
        mock.patch("numba.cuda.dispatcher._Kernel.bind"),
    ):
        signed = cuda.jit([SIGNATURE])(leading_zeros)
    with simulate():
        signed[1, 1](OUT, 2**20)
    assert OUT == 11
    with pytest.raises(TypeError, match="its signature"):
        launch(signed, 1, 1, np.zeros(1, np.float32), 1)


def test_the_successors_jit_is_replaced_as_long() -> None:
    successor = pytest.importorskip("numba_cuda_mlir.cuda")
    before = successor.jit
    with simulate():
        successor.jit(SIGNATURE)(leading_zeros)[1, 1](OUT, 2**20)
    assert OUT == 11
    assert successor.jit is before


# kernel[grid, block](…) --------------------------------------------------------------------------


def test_a_launch_in_brackets_runs_with_all_checks_and_leaves_its_report() -> None:
    ours, empty = cuda.jit(leading_zeros), kernel("", "cuda.shared.array(0, float32)[0] = 1")
    with simulate():
        ours[1, 1](OUT, 2**20)
        assert ours.report.checks == ("memory", "init", "race", "sync")
        assert not ours.report.trace
        with simulate(trace=0):
            ours[(1,), (1,)](OUT, 2**20)
        assert ours.report.trace
        with pytest.raises(SimtError, match="race"):
            ours[1, 2](OUT, 2**20)
        assert ours.report is None, "the report of an earlier launch would mislead"
        with pytest.raises(SimtError, match=r" has no elements.*, 0, shared_bytes\]"):
            empty[1, 1]()


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("blockspergrid", lambda: cuda.jit(leading_zeros)(OUT, 5)),
        ("no option 'tracing'; it has checks", lambda: simulate(tracing=0)),
        ("no option 'shared_bytes'", lambda: simulate(shared_bytes=4)),
    ],
)
def test_what_cuda_refuses_is_refused(words: str, call) -> None:
    with simulate(), pytest.raises((TypeError, ValueError), match=words):
        call()
