"""The kernel for the CPU: what the cases of the ladder do not ask."""

import os
import subprocess
import sys
from dataclasses import replace
from inspect import getclosurevars
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from numba import njit, types

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.cases import CASES
from pa_tutorial.kernels.cpu import kernel as cpu_kernel
from pa_tutorial.kernels.cpu.backend import STORED_AS, cpu_backend, cut, paged_attention_cpu
from pa_tutorial.kernels.cpu.vectors import E4M3_UNIT
from tests.kernels.kernel_inputs import prepare, require_right, step

pytestmark = pytest.mark.cpu
# All of one head size, block size and dtype: they are compiled once.
MIXED = {"seq_lens": (1, 300, 16, 45, 129), "head_size": 64, "block_size": 16, "alibi": True}


def mixed(**changes: object) -> dict[str, object]:
    return step(**MIXED | {"num_kv_heads": 4} | changes)


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)


@pytest.mark.parametrize("num_shares", [1, 2, 32, 33, 1000])
def test_any_number_of_shares_gives_the_same_step(num_shares: int, two_workers: None) -> None:
    """33 blocks in all: one a share, and more shares than blocks. A core that is free takes the
    shares of others: here one core has the shares of two workers."""
    arguments = mixed()
    prepared = prepare("cpu", **arguments, num_shares=num_shares)
    for left in prepared.arguments[2]:  # the partitions: they too may hold the right answer
        left.fill(np.nan)
    require_right(prepared.run(), arguments)
    # each worker's counter went on from its first share to the last, and once more for every core
    shares = min(num_shares, 33)
    assert prepared.arguments[1].taken.tolist() == [shares // 2 + 2, shares + 2]


@pytest.mark.parametrize(
    ("seq_lens", "num_kv_heads", "cut_into"),
    [((40,), 4, (1, 1)), ((900,), 4, (2, 1)), ((900,), 3, (1, 2)), ((20_000,), 2, (1, 8))],
)
def test_a_step_is_cut_by_its_work(
    two_workers: None, seq_lens: tuple[int, ...], num_kv_heads: int, cut_into: tuple[int, int]
) -> None:
    heads = {"num_heads": 2 * num_kv_heads, "num_kv_heads": num_kv_heads}
    arguments = mixed(seq_lens=seq_lens, **heads)
    assert cut(DecodeStep(**arguments), num_workers=2) == cut_into
    require_right(paged_attention_cpu(**arguments), arguments)


def in_a_new_process(code: str, before: str = "", **environment: str) -> str:
    code = f"{before}\nfrom tests.kernels.test_cpu_kernel import *\n{code}"
    command = [sys.executable, "-c", code]
    return subprocess.check_output(command, env=os.environ | environment, text=True)


def test_torch_keeps_its_number_of_threads() -> None:
    """Numba's threads, when they start, set OpenMP's number, which is torch's too."""
    code = "torch.set_num_threads(1); paged_attention_cpu(**mixed()); "
    code += "print(torch.get_num_threads())"
    assert in_a_new_process(code, OMP_NUM_THREADS="2", NUMBA_NUM_THREADS="2") == "1\n"


@pytest.mark.rest("test_ladder.py, with the lanes of this processor")
@pytest.mark.parametrize("lanes", [8, 16])
def test_a_processor_with_fewer_or_more_lanes_gives_the_same_step(
    lanes: int, tmp_path: Path
) -> None:
    """One of the two is not what this machine has."""
    before = (
        "from unittest import mock; from llvmlite import binding; import numba\n"
        f"features = {{'avx512f': {lanes == 16}}}\n"
        "with mock.patch.object(binding, 'get_host_cpu_features', lambda: features):\n"
        "    import pa_tutorial.kernels.cpu.vectors"
    )
    code = (
        "arguments = mixed(num_heads=14, num_kv_heads=2)\n"  # 7 of a KV head: tiles of 4, 2 and 1
        "require_right(paged_attention_cpu(**arguments), arguments); print(cpu_kernel.LANES)"
    )
    assert in_a_new_process(code, before, NUMBA_CACHE_DIR=str(tmp_path)) == f"{lanes}\n"


@njit
def copied(stored: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """Each as it is kept: widened, times 1, and narrowed."""
    cpu_kernel.multiply(stored, 0, np.float32(1), copy, 0, len(stored))
    return copy


@pytest.mark.parametrize("dtype", [one for one in STORED_AS if one != torch.float32], ids=str)
def test_narrow_floats_are_widened_exactly_and_narrowed_as_torch_does(dtype: torch.dtype) -> None:
    """All there are, subnormals and NaN too. Nothing is narrowed to 8 bits."""
    kept_as, same = STORED_AS[dtype].name, {"rtol": 0, "atol": 0, "equal_nan": True}
    codes = np.arange(2 ** (8 * dtype.itemsize)).astype(kept_as)
    wide = torch.from_numpy(copied(codes, np.empty(len(codes), np.float32)))
    unit = E4M3_UNIT if dtype == torch.float8_e4m3fn else 1.0
    expected = torch.from_numpy(codes).view(dtype).float() * unit
    torch.testing.assert_close(wide, expected, **same)
    if dtype.itemsize == 2:
        bits = np.random.default_rng(0).integers(0, 2**32, 2**14, dtype=np.uint32)
        numbers = np.append(bits.view(np.float32), np.float32([np.nan, np.inf, -np.inf, 0] * 4))
        narrow = torch.from_numpy(copied(numbers, np.empty(len(numbers), kept_as))).view(dtype)
        torch.testing.assert_close(narrow, torch.from_numpy(numbers).to(dtype), **same)


@pytest.mark.parametrize("name", ["scale", "v_scale"])
def test_a_scale_that_would_overflow_is_refused(name: str) -> None:
    """The kernel decodes float8_e4m3fn as 1/256 of its number, and multiplies that by the rest."""
    case = replace(CASES["decode/float8_e4m3"], k_scale=(), v_scale=())
    with pytest.raises(ValueError, match=r"[kv]_scale is"):
        cpu_backend.prepare(replace(case.paged("plain"), **{name: 1e37}))


def test_the_compiled_kernel_is_kept_on_disk_until_its_text_changes(
    capsys: pytest.CaptureFixture,
) -> None:
    inputs = mixed()
    prepare("cpu", **inputs).run()
    capsys.readouterr()
    again = cpu_kernel.cpu_kernel.__wrapped__()  # as in a new process
    assert not capsys.readouterr().err, "it need not be compiled"
    replace(prepare("cpu", **inputs), kernel=again).run()
    assert sum(again.stats.cache_hits.values()) == 1
    assert not again.stats.cache_misses
    functions = cpu_kernel.loops.__wrapped__(MIXED["head_size"], types.float32)
    functions += cpu_kernel.converters.__wrapped__(types.int16)
    assert all(function.cache_hits for function in functions)
    for function in (again.py_func, *(function.__wrapped__ for function in functions)):
        assert "VECTORS" in getclosurevars(function).nonlocals  # a checksum of the other file
