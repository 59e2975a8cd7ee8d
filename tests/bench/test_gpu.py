"""CUDA tensors: the ladder, recorded outputs, streams and graphs (`pytest -m gpu`); and `make gpu`.

Marked `gpu`, all are collected everywhere, and skipped where there is no GPU. They need no more
than pytest, torch and numba-cuda. The same functions run here in the simulator, on few cases.
"""

import inspect
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial import private_names, simt
from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.bench import gpu, gpu_tools, record
from pa_tutorial.bench.cpu_inputs import Batch, Shape
from pa_tutorial.bench.record import IDS, KERNELS, checksum, load, moved, outputs, recorded
from pa_tutorial.checks.comparing import relative_errors, to_float64
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.kernels import launch
from pa_tutorial.kernels.geometry import BLOCK_SIZES
from pa_tutorial.kernels.gpu_launch import DEFAULT_SHARED
from pa_tutorial.kernels.prepare import most_shared
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES, Stage
from tests.simt_kernels.example import EXAMPLES

pytestmark = pytest.mark.filterwarnings("default")  # libraries warn of small grids, and of copies
ON_GPU = pytest.mark.gpu
by_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])

# The ladder -------------------------------------------------------------------------------------

STAGES_ON_GPU = ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2", "triton")


def stage_cases() -> Iterator:
    """Every case of every stage on the GPU; in the simulator one, for this file's own sake."""
    for name, case in itertools.product(STAGES_ON_GPU, CASES.values()):
        stage, marks = STAGES[name], [getattr(pytest.mark, name)]
        if stage.is_checked_on(case):
            yield pytest.param(stage, case.id, "cuda", marks=[*marks, ON_GPU])
        if case.id == "decode/worked_example":
            yield pytest.param(stage, case.id, "cpu", marks=marks)


def on_device(function: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """The function for tensors on the CPU: they are copied there, and its result back.

    It takes what the function takes, but no probe: nobody can look into a kernel on a GPU.
    """

    def decode(*arguments: object, **options: object) -> Tensor:
        there = [moved(g, device) if isinstance(g, Tensor) else g for g in arguments]
        return function(*there, **options).cpu()

    signature = inspect.signature(function)
    taken = [p for p in signature.parameters.values() if p.name != "probe"]
    decode.__signature__ = signature.replace(parameters=taken)
    return decode


@pytest.mark.parametrize(
    ("stage", "case_id", "device"), list(stage_cases()), ids=lambda a: getattr(a, "name", a)
)
def test_stage_is_right_on_the_device(stage: Stage, case_id: str, device: str) -> None:
    """Against the oracle; those before it stand against the oracle too."""
    trial = replace(stage_trial(stage, case_id), references={"the oracle": CASES[case_id].expected})
    case, _ = judge(trial, on_device(stage.function, device))
    assert case.passed, case.report()


def test_tensors_are_copied_with_their_gaps() -> None:
    q = CASES["decode/strided_q_float16"].paged("vllm").q[:, 1:]
    copy = moved(q, "cpu")
    assert copy.stride() == q.stride()
    assert copy.storage_offset() == q.storage_offset() > 0
    assert torch.equal(copy, q)
    assert copy.data_ptr() != q.data_ptr()


# Beside the simulator ---------------------------------------------------------------------------

# Largest relative norm of a difference: some roundings of sums; one unit in the last place. A GPU
# adds in another order, fuses a * b + c into one rounding, and has another exp.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def error(found: Tensor, expected: Tensor) -> float:
    """The largest relative norm over the last dimension. NaN, which stands where a sequence has
    no such partition, must stand in the same places: inf otherwise."""
    left, right = to_float64(found), to_float64(expected)
    empty = np.isnan(right)
    if left.shape != right.shape or not (np.isnan(left) == empty).all():
        return float("inf")
    left[empty] = right[empty] = 0.0
    return float(relative_errors(left, right).max())


@pytest.mark.parametrize(("kernel", "case_id"), list(itertools.product(KERNELS, IDS)))
@by_device
def test_the_device_gives_what_the_simulator_gave(device: str, kernel: str, case_id: str) -> None:
    """What v2 leaves for its reduce kernel too. In the simulator but for the last digit: the exp
    of NumPy is not the same on every processor."""
    expected, found = recorded(case_id, kernel, load()), outputs(case_id, kernel, device)
    assert expected.keys() == found.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype
        within = TOLERANCE[tensor.dtype] / (4 if device == "cpu" else 1)
        assert error(tensor, expected[name]) <= within, name


def test_the_record_has_all_dtypes_layouts_and_partitions_and_is_small() -> None:
    cases = [CASES[case_id] for case_id in IDS]
    assert {case.dtype for case in cases} == set(TOLERANCE)
    assert {case.block_size for case in cases} == set(BLOCK_SIZES)
    assert any(case.num_heads > case.num_kv_heads > 1 for case in cases)
    assert record.FILE.stat().st_size <= 100_000
    tmp_out = recorded("decode/alibi_block_size_8", "v2", load())["tmp_out"]
    assert tmp_out.shape == (2, 6, 3, 64)
    assert tmp_out[1, :, 2].isnan().all(), "the shorter sequence has two partitions"


def test_other_inputs_than_those_of_the_record_are_seen() -> None:
    arrays = load() | {f"{IDS[-1]} inputs": checksum(IDS[-1]) + 1}
    with pytest.raises(ValueError, match=r"inputs of decode/worked_example are not those of"):
        recorded(IDS[-1], "v1", arrays)


def test_an_error_and_a_misplaced_nan_are_seen() -> None:
    expected = torch.tensor([[1.0] * 3, [torch.nan] * 3])
    assert error(expected.clone(), expected) == 0
    for wrong in (torch.ones(2, 3), torch.full((2, 3), torch.nan), torch.ones(2, 2)):
        assert error(wrong, expected) == float("inf")
    for dtype in (torch.float16, torch.bfloat16):
        steps = [torch.full((4,), 1 + n * torch.finfo(dtype).eps, dtype=dtype) for n in range(3)]
        assert error(steps[1], steps[0]) <= TOLERANCE[dtype] < error(steps[2], steps[0])


def can_be_copied(args: tuple) -> bool:
    """Whether a launch with these arrays of the host is the same on a GPU: Numba copies no array
    with gaps, and copies share no memory."""
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    apart = not any(np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))
    return apart and all(a.flags.c_contiguous or a.flags.f_contiguous for a in arrays)


@ON_GPU
@pytest.mark.parametrize("name", [n for n, one in EXAMPLES.items() if can_be_copied(one.draw())])
def test_a_small_kernel_gives_the_answer_of_the_simulator(name: str) -> None:
    pytest.importorskip("greenlet", reason="needs greenlet, which the simulator needs")
    example = EXAMPLES[name]
    expected, found = example.draw(), example.draw()
    size = {"shared_bytes": example.shared_bytes}
    simt.launch(example.kernel, example.grid, example.block, *expected, **size)
    example.kernel[example.grid, example.block, 0, example.shared_bytes](*found)
    # A GPU fuses a * b + c into one rounding; its exp and sin differ in the last digits.
    least = {np.dtype(np.float16): 2e-3, np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-12}
    for position in example.answer(*example.draw()):
        rtol = max(example.rtol, least.get(expected[position].dtype, 0.0))
        np.testing.assert_allclose(found[position], expected[position], rtol=rtol, atol=rtol)


# Streams, graphs, shared memory -----------------------------------------------------------------

PREPARE = {"v1_vector": partial(launch.prepare_v1, loads=vector_loads), "v2": launch.prepare_v2}
by_kernel = pytest.mark.parametrize("prepare", list(PREPARE.values()), ids=list(PREPARE))
Prepare = Callable[..., object]
CYCLES = 400_000_000  # of a GPU's clock: about 0.2 seconds


def batch(longest: int = 700, seed: int = 0) -> Batch:
    """700 tokens are two partitions of v2."""
    return Batch(Shape("launch", (longest, 9), 4, 2, 64, torch.float16), seed, "cuda")


def step_of(prepare: Prepare, inputs: Batch) -> Callable[[], Tensor]:
    return prepare(*inputs.vllm_arguments, max_seq_len=max(inputs.shape.seq_lens)).run


def require_right(out: Tensor, inputs: Batch) -> None:
    expected = paged_gather(*inputs.arguments).double()
    errors = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(errors.nan_to_num(nan=torch.inf).max()) <= 5e-3


@contextmanager
def side_stream() -> Iterator[None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@ON_GPU
@by_kernel
def test_a_launch_goes_to_the_current_stream(prepare: Prepare) -> None:
    """q arrives late on another stream than the default one. A launch on any other stream would
    read q before."""
    inputs = batch()
    step = step_of(prepare, inputs)
    step()
    late = inputs.q.clone()
    inputs.q.fill_(torch.nan)
    torch.cuda.synchronize()
    with side_stream():
        private_names.sleep(CYCLES)
        inputs.q.copy_(late)
        out = step()
    require_right(out, inputs)


@ON_GPU
@by_kernel
def test_nobody_waits_for_a_launch(prepare: Prepare) -> None:
    step = step_of(prepare, batch())
    step()
    with side_stream():
        step()
        private_names.sleep(CYCLES)
        torch.cuda.set_sync_debug_mode("error")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert not torch.cuda.current_stream().query(), "the launch came back when all was done"


@ON_GPU
@by_kernel
def test_a_graph_reads_new_numbers_at_each_replay(prepare: Prepare) -> None:
    inputs, others = batch(), batch(seed=1)
    step = step_of(prepare, inputs)
    with side_stream():
        step()  # the first call compiles, which no graph can hold
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    others.seq_lens[0] -= 100
    for tensor, other in zip(inputs.vllm_arguments[:5], others.vllm_arguments[:5], strict=True):
        tensor.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    require_right(out, others)


@ON_GPU
def test_v1_asks_for_all_shared_memory_and_past_it_names_v2() -> None:
    inputs, most = batch(14_000), most_shared(torch.empty(0, device="cuda"))
    assert DEFAULT_SHARED < 4 * max(inputs.shape.seq_lens) < most
    for prepare in PREPARE.values():
        require_right(step_of(prepare, inputs)(), inputs)
    inputs = batch(most // 4 + 16)
    with pytest.raises(ValueError, match="paged_attention_v2 has no such limit"):
        step_of(PREPARE["v1_vector"], inputs)
    require_right(step_of(PREPARE["v2"], inputs)(), inputs)


# `make gpu` -------------------------------------------------------------------------------------

SMALL = Shape("small", (37, 37), num_heads=4, num_kv_heads=2, head_size=64, dtype=torch.float16)


def test_every_step_that_is_timed_is_attention() -> None:
    timed, left_out = gpu.steps(Batch(SMALL))
    assert set(timed) | set(left_out) >= {"cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2"}
    assert ("triton" in timed) != ("triton" in left_out)
    assert gpu.why_wrong(timed) == {}


def test_a_wrong_step_is_told_and_not_timed() -> None:
    timed = {"sdpa": lambda: torch.ones(2), "no": lambda: torch.zeros(2), "fails": lambda: 1 / 0}
    why = ["its result has the error 1.0e+00", "ZeroDivisionError: division by zero"]
    assert gpu.why_wrong(timed) == dict(zip(("no", "fails"), why, strict=True))


def test_a_row_has_the_bandwidth_beside_that_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy reads and writes all of the pool; a step reads K and V of its tokens."""
    monkeypatch.setattr(gpu, "steps", lambda batch: ({"sdpa": lambda: batch.q}, {"x": "why"}))
    row = gpu.measure_shape(SMALL, 2, lambda function: 2.0, device="cpu")
    pool = 2 * (2 * 3 + 1) * 2 * 16 * 64 * 2
    assert row["copy_gb_per_s"] == round(2 * pool / 2.0 / 1e6, 1)
    assert row["fraction_of_copy"] == {"sdpa": round(SMALL.kv_bytes / (2 * pool), 3)}
    assert (row["left_out"], row["wrong"]) == ({"x": "why"}, {})


def test_without_a_gpu_or_its_tools_one_line_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "No GPU here: nothing was measured. The walk needs none.\n"
    monkeypatch.setattr(gpu_tools.shutil, "which", lambda name: None)
    monkeypatch.setattr(gpu_tools, "PLACES", ())
    for section in (gpu_tools.counters, gpu_tools.sanitizer):
        assert section()["wrong"] == []
        assert "there is no " in capsys.readouterr().out


def test_gpu_tests_are_collected_with_what_such_a_machine_has() -> None:
    """All of them and no other, without the packages that only the other tests need."""
    absent = ("greenlet", "hypothesis", "matplotlib", "nbformat", "playwright", "psutil", "xdist")
    code = (
        f"import sys, pytest; sys.modules |= dict.fromkeys({absent})\n"
        "sys.exit(pytest.main(['-m', 'gpu', '--collect-only', '-q', '-p', 'no:cacheprovider']))"
    )
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=plain)
    assert done.returncode == 0, done.stdout + done.stderr
    collected = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(collected) > 200
    assert {line.partition("::")[0] for line in collected} == {"tests/bench/test_gpu.py"}
    assert not [line for line in collected if "[cpu" in line or "-cpu]" in line]
