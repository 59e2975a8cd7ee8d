"""Our kernels as Numba compiles them, beside the same kernels in the simulator."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numba import cuda, float32

from pa_tutorial.checks.cases import CASES, SHORT_CHECK, WORKED_EXAMPLE
from pa_tutorial.checks.ladder import STAGES, backend_named
from pa_tutorial.kernels.compiled import backend
from pa_tutorial.kernels.compiled.backend import Compiled, CompiledLaunch, parts_of
from pa_tutorial.kernels.compiled.report import compiled
from pa_tutorial.kernels.cuda_backends import v1_vector_backend
from pa_tutorial.kernels.cuda_launch import CudaLaunch
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.viz.bill import STEP
from pa_tutorial.viz.kernel_runs import REFERENCE
from simt import Trace, compile_ptx
from simt.ptx import PtxFault, run_ptx
from simt.traffic import costs

STAGES_IN_CUDA = [name for name in STAGES if name.startswith("cuda_")]
SCALES = {"k_scale": (0.02,), "v_scale": (0.02,)}
FUSED = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # the simulator has no FMA

pytestmark = pytest.mark.needs("numba-cuda")
rest = pytest.mark.rest("one kernel and one case; test_ptx_arithmetic.py and test_ptx_faults.py")


def global_cost(trace: Trace) -> dict[str, tuple[int, int]]:
    """(transactions, sectors) of each array in global memory."""
    found = {}
    for array in {array.name for array in trace.arrays if array.space == "global"}:
        part = trace.only(array=array)
        found[array] = part.num_instructions, int(costs(part)["sectors"].sum())
    return {array: cost for array, cost in found.items() if cost[0]}


OF_A_HEAD = {"alibi_slopes", "k_scale", "v_scale"}
FOUR = ("gqa", "bfloat16", "head_size_120_float16", "alibi_block_size_8")
SHORT = [name.removeprefix("decode/") for name in SHORT_CHECK]
# Four cases of each stage, and of one the whole short check.
PAIRS = [(name, case) for name in STAGES_IN_CUDA for case in FOUR]
PAIRS += [("cuda_v1_vector", case) for case in SHORT if case not in FOUR]


@pytest.mark.rest(keep=["cuda_v1_vector-gqa"])
@pytest.mark.parametrize(("name", "case"), PAIRS, ids=map("-".join, PAIRS))
def test_the_compiled_kernel_computes_and_moves_what_the_simulated_one_does(
    name: str, case: str
) -> None:
    problem = CASES[f"decode/{case}"]
    step, sizes = problem.paged("vllm"), STAGES[name].sizes(problem)
    simulated = backend_named(name).prepare(step, **sizes)
    compiled = Compiled(backend_named(name)).prepare(step, **sizes)
    reports = simulated.simulate(trace="all", checks=())
    found = compiled.probe()
    # Of scores around 300 the rounding errors are 100 times as large, and so the exponentials'.
    worse = 100 if case == "stale_slots_far_above" else 1
    quantities = ["qk"]
    if name != "cuda_naive":
        quantities += ["qk_max", "exp_sum", "logits"]
        quantities += ["accs"] * (problem.dtype == torch.float32)
    for quantity in quantities:
        expected = torch.from_numpy(problem.expected()[quantity])
        off = 1e-5 * worse
        torch.testing.assert_close(found[quantity].double(), expected, rtol=off, atol=off)
    out = found["out"]
    error = (out.float() - simulated.out.float()).norm() / simulated.out.float().norm()
    assert error < FUSED[problem.dtype] * worse
    reports = reports if isinstance(reports, tuple) else (reports,)
    for ours, theirs in zip(compiled.reports, reports, strict=True):
        costs_of = [global_cost(one.trace) for one in (ours, theirs)]
        if case == "gaps_in_the_cache":  # V lies in K's gaps, and PTX has no arrays
            costs_of = [np.sum([*cost.values()], axis=0).tolist() for cost in costs_of]
        else:  # a number of a head may be loaded where it is used, in the warps that use it
            for name in OF_A_HEAD & costs_of[0].keys():
                assert costs_of[0].pop(name) <= costs_of[1].pop(name)
        assert costs_of[0] == costs_of[1]
        barriers = theirs.trace.only(kind="barrier").num_instructions
        assert ours.issued["barrier"] == barriers


def test_a_sequence_of_one_full_partition_has_the_maximum_and_sum_of_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reduce kernel only copies its output; what its warps leave is another sequence's."""
    of_a_partition = {name: torch.zeros(4, 2, 1) for name in ("qk_max", "exp_sum", "logits")}
    monkeypatch.setattr(backend, "intermediates_of_paged", lambda *_: dict(of_a_partition))
    monkeypatch.setattr(backend, "of_warps", lambda *_: torch.ones(4, 2, 1))
    step = replace(STEP, seq_lens=(15, 16, 17, 33)).paged("vllm")
    launch = backend_named("cuda_v2").prepare(step, partition_size=16)
    reduced = SimpleNamespace(machine=SimpleNamespace(at_barriers=[0]))
    found = backend.intermediates_of_v2(None, reduced, launch, *torch.ones(2, 4, 2, 3))
    for name in ("qk_max", "exp_sum"):
        assert found[name][:, 0, 0].tolist() == [0, 0, 1, 1], name


@rest
def test_line_numbers_change_no_access_and_no_arithmetic() -> None:
    """Of v2's reduce kernel; the addresses are computed in other places."""
    step = WORKED_EXAMPLE.paged("vllm")
    _, part = parts_of(backend_named("cuda_v2").prepare(step, partition_size=8))
    plain, located = (
        run_ptx(
            part.kernel, part.grid, part.geometry.NUM_THREADS, *part.arguments.values(),
            shared_bytes=part.shared_bytes, checks=(), lineinfo=lineinfo,
        ).issued
        for lineinfo in (False, True)
    )  # fmt: skip
    for what in ("load global", "store global", "load shared", "store shared", "shuffle", "float"):
        assert located[what] == plain[what] > 0, what


@rest
def test_decoding_makes_v1_execute_3_times_as_many_instructions() -> None:
    """Notebook 13 says so, and how many they are in float16."""
    executed = []
    for step in (STEP, replace(STEP, cache_dtype=torch.float8_e4m3fn, **SCALES)):
        part = v1_vector_backend.prepare(step.paged("vllm"))
        arguments = part.arguments.values()
        size = part.grid, part.geometry.NUM_THREADS
        options = {"shared_bytes": part.shared_bytes, "checks": ()}
        text = compiled(part.kernel, *arguments).ptx
        executed.append(run_ptx(part.kernel, *size, *arguments, **options, text=text).num_issued)
    assert executed[0] == pytest.approx(79_402, rel=0.03)  # of another compiler
    assert 2.9 < executed[1] / executed[0] < 3.1


@cuda.jit
def shift(out: np.ndarray, a: np.ndarray) -> None:
    t = cuda.threadIdx.x
    out[t] = a[t + 1]


@rest
def test_a_mistake_in_a_compiled_stage_names_the_line_of_python() -> None:
    """It is compiled as for a launch, without lines; then once more with them."""
    out, a = torch.zeros(64), torch.zeros(64)
    geometry, arguments = Geometry(32, 8, num_threads=64), {"out": out, "a": a}
    launch = CudaLaunch(None, shift, geometry, (1, 1, 1), 0, arguments, out)
    with pytest.raises(PtxFault, match=r"from line \d+ of .*test_ptx_kernels.py:  out\[t\] = a"):
        CompiledLaunch(launch, (8, 0)).run()


@rest
def test_the_compiled_kernel_has_no_race() -> None:
    """With all checks."""
    (part,) = parts_of(backend_named("cuda_v1").prepare(WORKED_EXAMPLE.paged("vllm")))
    expected = part.out.clone()
    part.simulate()
    expected.copy_(part.out)
    run_ptx(
        part.kernel, part.grid, part.geometry.NUM_THREADS, *part.arguments.values(),
        shared_bytes=part.shared_bytes, unwritten=part.unwritten,
    )  # fmt: skip
    torch.testing.assert_close(part.out, expected)


@cuda.jit
def reverse_without_a_barrier(out: np.ndarray, a: np.ndarray) -> None:
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    out[t] = s[63 - t]


def test_a_missing_barrier_is_found_in_a_compiled_kernel() -> None:
    a = np.arange(64, dtype=np.float32)
    with pytest.raises(PtxFault, match=r"race: thread 0 of .* read where thread 63 did a write"):
        run_ptx(reverse_without_a_barrier, 1, 64, np.zeros_like(a), a)


@rest
def test_it_takes_about_as_long_as_the_simulator() -> None:
    """256 thread blocks, with all checks. v1 by element takes about half as long."""
    step = replace(REFERENCE, seq_lens=(256,) * 4, num_heads=64, num_kv_heads=16)
    (part,) = parts_of(backend_named("cuda_v1").prepare(step.paged("vllm")))
    size, arguments = (part.grid, part.geometry.NUM_THREADS), part.arguments.values()
    options = {"shared_bytes": part.shared_bytes, "unwritten": part.unwritten}
    options["text"] = compile_ptx(part.kernel, *arguments, compute_capability=(8, 0))
    simulated, compiled_ = [], []
    for _ in range(3):
        for times, run in (
            (simulated, part.simulate),
            (compiled_, lambda: run_ptx(part.kernel, *size, *arguments, **options)),
        ):
            start = time.thread_time()  # other processes cost nothing
            run()
            times.append(time.thread_time() - start)
    assert min(compiled_) < 3 * min(simulated)
