"""What the compiler made of a kernel, read from its PTX and the linker's log."""

import re

import pytest
import torch
from kernel_inputs import problem, values
from numba import typeof

from pa_tutorial.kernels import compiled as compiling
from pa_tutorial.kernels.compiled import (
    compiled,
    loads_of,
    naive_signature,
    reduce_signature,
    v1_signature,
)
from pa_tutorial.kernels.cpp_twin import compile_twin
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.launch import prepare_naive, prepare_v1, prepare_v2
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.vectors import vector_loads

REFERENCE = Geometry(128, 16, torch.float16)


@pytest.mark.parametrize(
    ("instruction", "space", "width"),
    [
        ("ld.global.b16 %rs1, [%rd1];", "global", 2),
        ("ld.global.u16 %rs1, [%rd1+2];", "global", 2),
        ("@%p1 ld.global.nc.u32 %r1, [%rd1];", "global", 4),
        ("ld.global.nc.v4.u16 {%rs1, %rs2, %rs3, %rs4}, [%rd1];", "global", 8),
        ("ld.global.v2.b32 {%r1, %r2}, [%rd1];", "global", 8),
        (
            "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];",
            "global",
            16,
        ),
        ("ld.relaxed.gpu.global.L1::evict_last.v2.b64 {%rd2, %rd3}, [%rd1];", "global", 16),
        ("ld.global.nc.b128 %rq1, [%rd1];", "global", 16),
        ("ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1];", "global", 32),
        ("ld.shared.f32 %f1, [%r1];", "shared", 4),
        ("ld.volatile.shared::cta.v2.b64 {%rd1, %rd2}, [%r1];", "shared", 16),
        ("ld.local.v2.f32 {%f1, %f2}, [%rd1];", "local", 8),
        ("ld.param.u64 %rd1, [kernel_param_0];", "param", 8),
        ("ld.u8 %rs1, [%rd1];", "generic", 1),
        ("ld.volatile.v2.f32\t{%f1, %f2}, [%rd1];", "generic", 8),
    ],
)
def test_a_load_is_counted_by_space_and_width(instruction: str, space: str, width: int) -> None:
    text = f"$L1:\n\t{instruction}\n\tst.global.u32 [%rd1], %r1;\n\t{instruction}\n"
    assert loads_of(text) == {(space, width): 2}


def test_what_is_no_load_is_not_counted() -> None:
    no_loads = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {}, [%r1];\nst.global.u16 [%rd1], %rs1;\n"
    assert loads_of(f"{no_loads}mov.u32 %ld.x, 1;\n.param .u64 world.ld.u32\n") == {}


def test_a_load_of_unknown_width_is_not_left_out() -> None:
    with pytest.raises(ValueError, match=r"ld\.global\.e4m3 is a load of unknown width"):
        loads_of("ld.global.e4m3 %r1, [%rd1];")


def test_where_there_is_no_compiler_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    kernel = paged_attention(REFERENCE)
    for compile_it in (
        lambda: compiled(kernel, v1_signature(REFERENCE), (9, 0)),
        lambda: compile_twin(REFERENCE, (9, 0)),
    ):
        with pytest.raises(ImportError, match=r"numba-cuda\[cu13\].*no wheels for macOS"):
            compile_it()


needs_compiler = pytest.mark.needs("numba-cuda")


LOG = """ptxas info    : Function properties for kernel
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 288 bytes smem
"""


def test_registers_stack_and_spills_are_read_from_the_linkers_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "linked", lambda code, capability, target: (b"ret;", LOG))
    build = compiling.assembled(b"", (9, 0))
    assert (build.registers, build.stack_bytes, build.spill_bytes) == (40, 16, 4 + 8)


@needs_compiler
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_it_is_compiled_for_the_gpu_that_is_named(capability: tuple[int, int]) -> None:
    target = f".target sm_{capability[0]}{capability[1]}"
    kernel = paged_attention(REFERENCE, vector_loads)
    for build in (
        compiled(kernel, v1_signature(REFERENCE), capability),
        compile_twin(REFERENCE, capability),
    ):
        assert target in build.ptx
        # A wide load of shared memory needs an array that is aligned to its vecs.
        aligned = [int(n) for n in re.findall(r"\.shared \.align (\d+) \.b8", build.ptx)]
        # red_smem; q_vecs, of which C++ knows that a vec has 8 bytes; the dynamic shared memory
        assert sorted(aligned) in ([4, 16, 16], [4, 8, 16])


@needs_compiler
def test_a_kernel_is_compiled_for_the_types_that_a_launch_gives_it() -> None:
    """An int of another width would make another kernel, and be compiled at the first launch."""
    arguments = values(problem(head_size=128, dtype=torch.float16).paged("vllm"))
    v2 = prepare_v2(*arguments)
    for prepared, signature in (
        (prepare_naive(*arguments), naive_signature),
        (prepare_v1(*arguments), v1_signature),
        (v2.partitions, v1_signature),
        (v2.reduce, reduce_signature),
    ):
        types = [
            typeof(value.numpy() if isinstance(value, torch.Tensor) else value)
            for value in prepared.kernel_arguments
        ]
        assert [str(t) for t in types] == [str(t) for t in signature(prepared.geometry)]
