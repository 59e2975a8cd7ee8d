"""The kernels of the notebooks, as files: constants at the top, a reader's functions in them."""

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from numba import cuda

from pa_tutorial.attention.backend import Backend
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.exercises.kernel_file import LAUNCHES, KernelFile, imported, updated
from pa_tutorial.viz.kernel_runs import REFERENCE
from simt import SimtError

STAGES = dict(zip(LAUNCHES, ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2"), strict=True))
WIDE = replace(WORKED_EXAMPLE, head_size=96, block_size=32, dtype=torch.bfloat16)
TEXT = '''"""A file."""

import math

from numba import cuda

SIZE = 4  # with a comment
HALF = SIZE // 2


def first():
    return HALF


def second():
    return math.pi
'''


@pytest.mark.parametrize("problem", [WORKED_EXAMPLE, REFERENCE, WIDE], ids=["ex", "ref", "96_32"])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_file_computes_the_bits_of_its_stage(name: str, problem: object) -> None:
    step, sizes = problem.paged("vllm"), {"partition_size": 32} if name == "v2" else {}
    backend = KernelFile(name)
    assert isinstance(backend, Backend)
    ours = backend.prepare(step, **sizes).probe()
    theirs = backend_named(STAGES[name]).prepare(step, **sizes).probe()
    assert {name: torch.equal(ours[name], theirs[name]) for name in theirs} == dict.fromkeys(
        theirs, True
    )


@cuda.jit(device=True)
def load_key(k_vecs, k_block, physical_block_offset):
    k_vecs[0, 0] = k_block[HEAD_SIZE, 0, 0]  # noqa: F821  a constant of the file


def test_a_readers_function_takes_the_place_of_ours() -> None:
    launch = KernelFile("v1", load_key).prepare(WORKED_EXAMPLE.paged("vllm"))
    with pytest.raises(SimtError, match=r"k_block\[HEAD_SIZE, 0, 0\]"):
        launch.run()


def test_definitions_are_replaced_by_name_and_new_ones_follow_their_kind() -> None:
    change = (
        "from numba import float32\nSIZE = 8\nNEW = 1\ndef second():\n    return 2\n"
        "def third():\n    return NEW\n"
    )
    module = imported(text := updated(TEXT, change))
    assert (module.first(), module.second(), module.third()) == (4, 2, 1)
    assert "from numba import cuda, float32\n" in text
    assert text.startswith('"""A file."""')
    assert text.index("NEW = 1") < text.index("def first")


def test_of_two_functions_of_one_name_the_last_says_whose_it_is() -> None:
    ours = KernelFile("v1").module().load_key
    assert KernelFile("v1", ours, load_key).written() == {"load_key"}
    assert KernelFile("v1", load_key, ours).written() == set()


def test_formulas_follow_a_constant() -> None:
    module = KernelFile("v1").module(HEAD_SIZE=64, BLOCK_SIZE=16, DTYPE=torch.float32)
    assert (module.VEC_SIZE, module.NUM_VECS_PER_THREAD, module.X) == (2, 16, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: KernelFile("v3"), "name is 'v3'; it must be one of sizes, naive, v1, vectors, v2"),
        (lambda: KernelFile("v1").text(HEADSIZE=64), "HEADSIZE isn't a constant of this file"),
    ],
)
def test_an_unknown_name_is_refused(call: Callable, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_a_file_written_again_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for head_size in (32, 64, 96):
        KernelFile("naive").write(tmp_path / "kernel_again.py", HEAD_SIZE=head_size)
        assert head_size == import_module("kernel_again").HEAD_SIZE
    sys.modules.pop("kernel_again")
