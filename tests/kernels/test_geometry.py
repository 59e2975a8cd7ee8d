"""Geometry: each constant against numbers worked out by hand, shared memory, print, errors."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pa_tutorial.kernels.geometry import CONSTANTS, FLT_MAX, Geometry

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
REFERENCE = Geometry(head_size=128, block_size=16)  # float16, 128 threads

# By hand, from the formulas of vLLM's kernel.
OF_REFERENCE = {
    "HEAD_SIZE": 128,
    "BLOCK_SIZE": 16,
    "NUM_THREADS": 128,
    "PARTITION_SIZE": 0,
    "NUM_QUERIES_PER_KV": 1,
    "NUM_WARPS": 4,
    "THREAD_GROUP_SIZE": 2,
    "NUM_THREAD_GROUPS": 64,
    "NUM_TOKENS_PER_THREAD_GROUP": 1,
    "VEC_SIZE": 4,
    "NUM_ELEMS_PER_THREAD": 64,
    "NUM_VECS_PER_THREAD": 16,
    "X": 8,
    "V_VEC_SIZE": 8,
    "NUM_V_VECS_PER_ROW": 2,
    "NUM_ROWS_PER_ITER": 16,
    "NUM_ROWS_PER_THREAD": 8,
}
NAMES = (
    *("NUM_WARPS", "THREAD_GROUP_SIZE", "NUM_THREAD_GROUPS", "NUM_TOKENS_PER_THREAD_GROUP"),
    *("VEC_SIZE", "NUM_ELEMS_PER_THREAD", "NUM_VECS_PER_THREAD", "X"),
    *("V_VEC_SIZE", "NUM_V_VECS_PER_ROW", "NUM_ROWS_PER_ITER", "NUM_ROWS_PER_THREAD"),
)
BY_HAND = {  # in the order of NAMES
    Geometry(64, 16, F32): (4, 2, 64, 1, 2, 32, 16, 4, 4, 4, 8, 8),
    Geometry(128, 8, F32): (4, 4, 32, 1, 1, 32, 32, 4, 4, 2, 16, 8),
    Geometry(128, 32, F32): (4, 1, 128, 1, 4, 128, 32, 4, 4, 8, 4, 32),
    Geometry(128, 8, F16): (4, 4, 32, 1, 2, 32, 16, 8, 8, 1, 32, 4),
    Geometry(256, 32, BF16): (4, 1, 128, 1, 8, 256, 32, 8, 8, 4, 8, 32),
    Geometry(120, 16, F16): (4, 2, 64, 1, 4, 60, 15, 8, 8, 2, 16, 8),
    Geometry(80, 8, BF16, 64): (2, 4, 16, 1, 2, 20, 10, 8, 8, 1, 32, 3),
    Geometry(32, 16, F16, 256): (8, 2, 128, 1, 4, 16, 4, 8, 8, 2, 16, 2),
}


def short(geometry: Geometry) -> str:
    dtype = str(geometry.dtype).removeprefix("torch.")
    return f"{dtype}-head{geometry.head_size}-bs{geometry.block_size}-t{geometry.num_threads}"


@pytest.mark.parametrize(("name", "value"), OF_REFERENCE.items())
def test_constant_of_the_reference_geometry(name: str, value: int) -> None:
    assert getattr(REFERENCE, name) == value


@pytest.mark.parametrize(
    ("geometry", "name", "value"),
    [
        pytest.param(geometry, name, value, id=f"{short(geometry)}-{name}")
        for geometry, values in BY_HAND.items()
        for name, value in zip(NAMES, values, strict=True)
    ],
)
def test_constant_by_hand(geometry: Geometry, name: str, value: int) -> None:
    assert getattr(geometry, name) == value


def test_what_is_given_stays() -> None:
    geometry = Geometry(64, 32, BF16, num_threads=64, partition_size=512, num_queries_per_kv=8)
    assert (geometry.PARTITION_SIZE, geometry.NUM_QUERIES_PER_KV, geometry.ITEMSIZE) == (512, 8, 2)


def test_the_least_float_is_that_of_float32() -> None:
    assert FLT_MAX == (2 - 2**-23) * 2.0**127


# Shared memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("geometry", "max_seq_len", "num_bytes"),
    [
        (REFERENCE, 11, 2 * 128 * 4),  # out_smem of two warps; logits are 16 * 4
        (REFERENCE, 256, 1024),  # both are as large
        (REFERENCE, 257, 272 * 4),  # padded to whole blocks
        (REFERENCE, 4100, 4112 * 4),
        (Geometry(128, 32), 4100, 4128 * 4),
        (Geometry(32, 8, F16), 11, 2 * 32 * 4),
        (Geometry(32, 8, F16, 64), 11, 32 * 4),  # one of two warps leaves its rows
        (Geometry(256, 16, F32, 256), 11, 4 * 256 * 4),
        (REFERENCE, 0, 1024),
    ],
)
def test_dynamic_shared_bytes(geometry: Geometry, max_seq_len: int, num_bytes: int) -> None:
    assert geometry.dynamic_shared_bytes(max_seq_len) == num_bytes


@pytest.mark.parametrize("max_seq_len", [1, 512, 513, 100_000])
def test_with_partitions_the_length_does_not_count(max_seq_len: int) -> None:
    geometry = Geometry(128, 16, partition_size=512)
    assert geometry.dynamic_shared_bytes(max_seq_len) == 512 * 4


@pytest.mark.parametrize(
    ("geometry", "num_bytes"),
    [
        (REFERENCE, 256 + 32),
        (Geometry(256, 8, F32, 256), 1024 + 64),
        (Geometry(120, 16, BF16, 64), 240 + 16),
    ],
)
def test_static_shared_bytes_are_q_vecs_and_red_smem(geometry: Geometry, num_bytes: int) -> None:
    assert geometry.static_shared_bytes == num_bytes


# str() and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONSTANTS)
def test_print_shows_each_constant_with_its_value_and_formula(name: str) -> None:
    line = next(line for line in str(REFERENCE).splitlines() if line.startswith(f"{name} "))
    found, value, formula = line.split(maxsplit=2)
    assert (found, int(value)) == (name, OF_REFERENCE[name])
    assert formula == getattr(Geometry, name).__doc__


def test_the_constants_that_are_shown_are_all_of_them() -> None:
    assert set(CONSTANTS) == set(OF_REFERENCE)


def test_print_names_dtype_and_warp_size() -> None:
    assert str(Geometry(64, 16, BF16)).startswith("bfloat16, WARP_SIZE = 32\n")


def test_a_geometry_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        REFERENCE.head_size = 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_size": 100}, "head_size is 100; .*one of 32, 64, 80, 96, 112, 120, 128, 192, 256"),
        ({"head_size": 0}, "head_size is 0; "),
        ({"block_size": 12}, "block_size is 12; .*one of 8, 16, 32"),
        ({"block_size": 64}, "block_size is 64; .*one of 8, 16, 32"),
        ({"dtype": torch.float64}, "dtype is torch.float64; .*one of torch.float32, torch.float16"),
        ({"dtype": torch.int32}, "dtype is torch.int32; "),
        ({"num_threads": 32}, "num_threads is 32; .*one of 64, 128, 256"),
        ({"num_threads": 512}, "num_threads is 512; .*one of 64, 128, 256"),
        ({"partition_size": 24}, "partition_size is 24; .*multiple of block_size, which is 16"),
        ({"partition_size": -16}, "partition_size is -16; .*0, or a multiple"),
        ({"num_queries_per_kv": 0}, "num_queries_per_kv is 0; .*1 or more"),
    ],
)
def test_what_is_not_supported_is_refused_with_what_is(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**{"head_size": 128, "block_size": 16, **changes})


INTEGERS = {
    "head_size": 128,
    "block_size": 16,
    "num_threads": 128,
    "partition_size": 64,
    "num_queries_per_kv": 2,
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("kind", [float, str, np.int64, lambda n: None, lambda n: n == n])
def test_what_is_no_int_is_refused(name: str, kind: Callable) -> None:
    """128.0 == 128: the kernel made for the one would be kept for the other."""
    value = kind(INTEGERS[name])
    allowed = re.escape(f"{name} is {value!r}; it must be an int")
    with pytest.raises(ValueError, match=f"^{allowed}$"):
        Geometry(**{**INTEGERS, name: value})


@pytest.mark.parametrize(
    ("method", "argument", "message"),
    [
        ("head_elements", 2, "thread_group_offset is 2; it must be 0 to 1"),
        ("head_elements", -1, "thread_group_offset is -1"),
        ("value_rows", 32, "lane is 32; it must be 0 to 31"),
        ("value_tokens", -1, "lane is -1; it must be 0 to 31"),
        ("dynamic_shared_bytes", -1, "max_seq_len is -1; it must be 0 or more"),
    ],
)
def test_numbers_out_of_range_are_refused(method: str, argument: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(REFERENCE, method)(argument)
