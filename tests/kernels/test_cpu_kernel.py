"""The kernel for the CPU: what the cases of the ladder do not ask."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from inspect import getclosurevars, getsource
from types import ModuleType

import numba
import numpy as np
import pytest
import torch
from numba import njit, types

from pa_tutorial.attention.paged import gather_backend
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.cases import CASES
from pa_tutorial.kernels import cpu
from pa_tutorial.kernels.cpu import kernel as cpu_kernel
from pa_tutorial.kernels.cpu import vectors as cpu_vectors
from pa_tutorial.kernels.cpu.backend import cpu_backend, cut, paged_attention_cpu
from tests.kernels.kernel_inputs import prepare_cpu, require_right, step

pytestmark = pytest.mark.cpu
# All of one head size, block size and dtype: they are compiled once.
MIXED = {"seq_lens": (1, 300, 16, 45, 129), "head_size": 64, "block_size": 16, "alibi": True}
# How the kernel sees each, and what it multiplies it by when it widens it.
EIGHT_BITS = (
    (torch.float8_e4m3fn, np.uint8, cpu_vectors.E4M3_UNIT),
    (torch.float8_e5m2, np.int8, 1.0),
)


def mixed(**changes: object) -> dict[str, object]:
    return step(**MIXED | {"num_kv_heads": 4} | changes)


@pytest.mark.parametrize("num_shares", [1, 2, 32, 33, 34, 1000])
def test_any_number_of_shares_gives_the_same_step(num_shares: int) -> None:
    """33 blocks in all: one a share, and more shares than blocks."""
    arguments = mixed()
    prepared = prepare_cpu(**arguments, num_shares=num_shares)
    for left in prepared.arguments[2]:  # the partitions: they too may hold the right answer
        left.fill(np.nan)
    require_right(prepared.run(), arguments)


@pytest.mark.parametrize(
    ("seq_lens", "num_kv_heads", "cut_into"),
    [((40,), 4, (1, 1)), ((900,), 4, (2, 1)), ((900,), 3, (1, 2)), ((20_000,), 2, (1, 8))],
    ids=["one_core", "by_heads", "heads_do_not_go_up", "several_shares_a_core"],
)
def test_a_step_is_cut_by_its_work(
    monkeypatch, seq_lens: tuple[int, ...], num_kv_heads: int, cut_into: tuple[int, int]
) -> None:
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)
    heads = {"num_heads": 2 * num_kv_heads, "num_kv_heads": num_kv_heads}
    arguments = mixed(seq_lens=seq_lens, **heads)
    assert cut(DecodeStep(**arguments), num_workers=2) == cut_into
    require_right(paged_attention_cpu(**arguments), arguments)


def test_a_core_that_is_free_takes_the_shares_of_others() -> None:
    """Asked of the counters: with one thread, it takes those of both workers."""
    arguments = mixed()
    prepared = prepare_cpu(**arguments, num_shares=5)
    taken = prepared.arguments[1].taken
    numba.set_num_threads(1)
    try:
        require_right(prepared.run(), arguments)
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    # each worker's counter went on from its first share to the last, and once more for every core
    assert taken.tolist() == [(i + 1) * 5 // len(taken) + len(taken) for i in range(len(taken))]


def test_torch_keeps_its_number_of_threads() -> None:
    """Numba's threads, when they start, set OpenMP's number, which is torch's too."""
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from tests.kernels.test_cpu_kernel import mixed, paged_attention_cpu\n"
        "paged_attention_cpu(**mixed()); print(torch.get_num_threads())"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def executed(module: ModuleType, text: str) -> ModuleType:
    """A copy of the module with this text."""
    copy = ModuleType(module.__name__)
    copy.__file__ = module.__file__
    exec(compile(text, f"<{module.__name__}>", "exec"), copy.__dict__)
    return copy


@pytest.mark.rest("test_ladder.py, with the lanes of this processor")
@pytest.mark.parametrize("lanes", [8, 16])
def test_a_processor_with_fewer_or_more_lanes_gives_the_same_step(
    monkeypatch, capsys, lanes: int
) -> None:
    """One of the two is not what this machine has. Compiling is announced once."""
    arguments = mixed(num_heads=14, num_kv_heads=2)  # 7 of a KV head: tiles of 4, 2 and 1
    prepared = prepare_cpu(**arguments)
    capsys.readouterr()
    text, found = re.subn("^LANES = 16 .*", f"LANES = {lanes}", getsource(cpu_vectors), flags=re.M)
    assert found == 1
    vectors = executed(cpu_vectors, text)
    monkeypatch.setitem(sys.modules, cpu_vectors.__name__, vectors)
    monkeypatch.setattr(cpu, "vectors", vectors)
    other = executed(cpu_kernel, getsource(cpu_kernel))
    kernel = other.cpu_kernel()
    functions = *other.converters(types.float32), *other.loops(MIXED["head_size"], types.float32)
    inner = other.Inner(*(function.address for function in functions))
    prepared = replace(prepared, kernel=kernel, arguments=(*prepared.arguments[:4], inner))
    require_right(prepared.run(), arguments)
    assert not kernel.stats.cache_hits, "Numba keeps nothing on disk for a text without a file"
    assert capsys.readouterr().err == cpu_kernel.COMPILING


def test_compiling_is_not_announced_where_numba_has_kept_a_kernel(capsys) -> None:
    prepare_cpu(**mixed()).run()
    capsys.readouterr()
    cpu_kernel.cpu_kernel.__wrapped__()  # as in a new process
    assert not capsys.readouterr().err


@njit
def copied(stored: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """Each as it is kept: widened, times 1, and narrowed."""
    cpu_kernel.multiply(stored, 0, np.float32(1), copy, 0, len(stored))
    return copy


@pytest.mark.parametrize(
    ("dtype", "kept_as"), [(torch.bfloat16, np.uint16), (torch.float16, np.int16)]
)
def test_16_bit_floats_are_widened_exactly_and_narrowed_as_torch_does(
    dtype: torch.dtype, kept_as: type
) -> None:
    halves = np.arange(2**16).astype(kept_as)
    wide = torch.from_numpy(copied(halves, np.empty(2**16, np.float32)))
    expected = torch.from_numpy(halves.view(np.int16)).view(dtype).float()
    assert torch.allclose(wide, expected, rtol=0, atol=0, equal_nan=True)
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, 2**14).astype(np.int32)
    numbers = np.concatenate([bits.view(np.float32), np.float32([np.nan, np.inf, -np.inf, 0] * 4)])
    narrow = torch.from_numpy(copied(numbers, np.empty(len(numbers), kept_as)).view(np.int16))
    expected = torch.from_numpy(numbers).to(dtype).float()
    assert torch.allclose(narrow.view(dtype).float(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("dtype", "kept_as", "unit"), EIGHT_BITS)
def test_8_bit_floats_are_widened_exactly(dtype: torch.dtype, kept_as: type, unit: float) -> None:
    """All 256, subnormals and NaN too."""
    bytes_ = np.arange(2**8, dtype=np.uint8).view(kept_as)
    wide = torch.from_numpy(copied(bytes_, np.empty(2**8, np.float32)))
    expected = torch.from_numpy(bytes_.view(np.uint8)).view(dtype).float() * unit
    assert torch.allclose(wide, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_a_nan_in_a_used_slot_of_an_8_bit_cache_is_not_lost(name: str) -> None:
    """Of the last head of one sequence, in one partition of several."""
    # The ladder compiles this kernel too.
    case = replace(CASES["decode/float8_e4m3"], seq_lens=(40, 9))
    arguments = case.paged("plain")
    block = arguments.block_tables[0, 1]
    getattr(arguments, name)[block, 1, 3, 5] = torch.nan  # its bytes are 0x7F
    out = cpu_backend.prepare(arguments, num_shares=3).run()
    expected = gather_backend.prepare(arguments).run()
    assert expected.isnan().any()
    assert torch.equal(out.isnan(), expected.isnan())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": 1e37}, r"k_scale is \[1.0, 1.0\]; it must be at most 1.3e-01"),
        ({"v_scale": 1e37}, r"v_scale is .9.99.*e.36.; it must be at most 1.3e.36"),
    ],
    ids=["k", "v"],
)
def test_a_scale_that_would_overflow_is_refused(changes: dict[str, float], message: str) -> None:
    """The kernel decodes float8_e4m3fn as 1/256 of its number, and multiplies that by the rest."""
    case = replace(CASES["decode/float8_e4m3"], k_scale=(), v_scale=())
    with pytest.raises(ValueError, match=message):
        cpu_backend.prepare(replace(case.paged("plain"), **changes))


def test_the_compiled_kernel_is_kept_on_disk_until_its_text_changes() -> None:
    inputs = mixed()
    prepare_cpu(**inputs).run()
    again = cpu_kernel.cpu_kernel.__wrapped__()
    replace(prepare_cpu(**inputs), kernel=again).run()
    assert sum(again.stats.cache_hits.values()) == 1
    assert not again.stats.cache_misses
    functions = cpu_kernel.loops.__wrapped__(MIXED["head_size"], types.float32)
    functions += cpu_kernel.converters.__wrapped__(types.int16)
    assert all(function.cache_hits for function in functions)
    for function in (again.py_func, *(function.__wrapped__ for function in functions)):
        assert "VECTORS" in getclosurevars(function).nonlocals  # a checksum of the other file


def test_without_a_folder_to_keep_it_in_the_kernel_is_compiled_all_the_same(
    monkeypatch, capsys
) -> None:
    """Root may write everywhere, so Numba is told the one folder that nobody can make."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.setattr(numba.config, "CACHE_DIR", os.devnull)
    kernel = cpu_kernel.cpu_kernel.__wrapped__()
    assert kernel.stats.cache_path is None
    assert capsys.readouterr().err == cpu_kernel.COMPILING
