"""CUDA tensors: the ladder, the simulator, streams and graphs (`pytest -m gpu`); and `make gpu`.

What is marked `gpu` is collected everywhere, and skipped where there is no GPU. It needs no more
than pytest, torch and numba-cuda; beside the simulator it needs greenlet too. The same functions
run here in the simulator, on a few cases.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import simt
from pa_tutorial import private_names
from pa_tutorial.attention.backend import Launch
from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.bench import gpu
from pa_tutorial.bench.cpu_inputs import Batch, Shape
from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import bounds_of, compare
from pa_tutorial.checks.ladder import STAGES, backend_named
from pa_tutorial.kernels.cuda_backends import most_shared
from pa_tutorial.kernels.on_gpu import DEFAULT_SHARED
from tests.simt.kernels.example import EXAMPLES

pytestmark = pytest.mark.filterwarnings("default")  # libraries warn of small grids, and of copies
ON_GPU = pytest.mark.gpu

# The ladder -------------------------------------------------------------------------------------

ON_A_GPU = ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2", "triton")


def moved(tensor: Tensor, device: str) -> Tensor:
    """A copy on the device with the same strides, even for a view with gaps."""
    memory = tensor.new_empty(0).set_(tensor.untyped_storage()).to(device, copy=True)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def prepared(stage: str, case_id: str, device: str) -> Launch:
    """The launch of a stage for a case, with its tensors on the device."""
    case, backend = CASES[case_id], backend_named(stage)
    step = case.paged(backend.layout)
    fields = {
        name: moved(value, device) if isinstance(value, Tensor) else value
        for name, value in vars(step).items()
    }
    return backend.prepare(replace(step, **fields), **STAGES[stage].sizes(case))


def stage_cases() -> Iterator:
    """Every case of every stage on the GPU; in the simulator two, for this file's own sake."""
    for stage, case in itertools.product(ON_A_GPU, CASES.values()):
        mark = getattr(pytest.mark, stage)
        if not STAGES[stage].is_checked_on(case):
            continue
        yield pytest.param(stage, case.id, "cuda", marks=[mark, ON_GPU])
        if case.id in ("decode/worked_example", "decode/float8_e5m2"):
            yield pytest.param(stage, case.id, "cpu", marks=mark)


@pytest.mark.parametrize(("stage", "case_id", "device"), list(stage_cases()))
def test_stage_is_right_on_the_device(stage: str, case_id: str, device: str) -> None:
    if why := STAGES[stage].why_absent():
        pytest.skip(why)
    out = prepared(stage, case_id, device).run()
    references = {"the oracle": CASES[case_id].expected()}
    (found,) = compare({"out": out}, references, bounds_of(case_id))
    assert found.passed, f"out has the error {found.worst:.1e}; at most {found.bound:.1e} passes"


# Beside the simulator ---------------------------------------------------------------------------


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

by_kernel = pytest.mark.parametrize("stage", ["cuda_v1_vector", "cuda_v2"])
CYCLES = 400_000_000  # of a GPU's clock: about 0.2 seconds


def batch(longest: int = 700, seed: int = 0) -> Batch:
    """700 tokens are two partitions of v2."""
    return Batch(Shape("launch", (longest, 9), 4, 2, 64, torch.float16), seed, "cuda")


def step_of(stage: str, inputs: Batch) -> Callable[[], Tensor]:
    step = DecodeStep(*inputs.vllm_arguments)
    return backend_named(stage).prepare(step, max_seq_len=max(inputs.shape.seq_lens)).run


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
def test_a_launch_goes_to_the_current_stream(stage: str) -> None:
    """q arrives late, on a stream that isn't the default one. A launch on any other stream would
    read q too early."""
    inputs = batch()
    step = step_of(stage, inputs)
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
def test_a_launch_returns_before_it_is_done(stage: str) -> None:
    step = step_of(stage, batch())
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
def test_a_graph_reads_new_numbers_at_each_replay(stage: str) -> None:
    inputs, others = batch(), batch(seed=1)
    step = step_of(stage, inputs)
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
    for stage in ("cuda_v1_vector", "cuda_v2"):
        require_right(step_of(stage, inputs)(), inputs)
    inputs = batch(most // 4 + 16)
    with pytest.raises(ValueError, match="paged_attention_v2 has no such limit"):
        step_of("cuda_v1_vector", inputs)
    require_right(step_of("cuda_v2", inputs)(), inputs)


# `make gpu` -------------------------------------------------------------------------------------

SMALL = Shape("small", (37, 37), num_heads=4, num_kv_heads=2, head_size=64, dtype=torch.float16)


def test_every_step_that_is_timed_is_attention() -> None:
    timed, left_out = gpu.steps(Batch(SMALL))
    assert set(timed) | set(left_out) >= {"cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2"}
    assert ("triton" in timed) != ("triton" in left_out)
    assert gpu.why_wrong(timed) == {}


def test_a_step_with_a_wrong_result_is_not_timed() -> None:
    timed = {"sdpa": lambda: torch.ones(2), "no": lambda: torch.zeros(2), "fails": lambda: 1 / 0}
    why = ["its result has the error 1.0e+00", "ZeroDivisionError: division by zero"]
    assert gpu.why_wrong(timed) == dict(zip(("no", "fails"), why, strict=True))


def test_without_a_gpu_one_line_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "No GPU found, so we measured nothing. The walk needs none.\n"
