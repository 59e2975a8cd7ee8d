"""CUDA tensors, without a GPU: what a launch reads of them, and where it runs.

On a GPU `pytest -m gpu` sees the rest: streams, graphs, shared memory (tests/bench/test_gpu.py).
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from pa_tutorial.kernels import cuda_backends, cuda_launch, launch
from tests.kernels.kernel_inputs import arguments, prepare_naive, prepare_v1, prepare_v2, problem

PREPARE = (prepare_naive, prepare_v1, prepare_v2)
by_prepare = pytest.mark.parametrize("prepare_it", PREPARE, ids=("naive", "v1", "v2"))
ignore_data_ptr = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, object]]]:
    """Makes arguments whose tensors say that they are on a GPU. They have no numbers: whoever
    looks at one, and so would wait for a GPU, fails."""
    monkeypatch.setattr(cuda_backends, "max_shared_bytes", lambda: 100 * 1024)

    def moved(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")

    def inputs(**changes: object) -> dict[str, object]:
        with unset_fake_temporarily():
            real = arguments(problem(**{"alibi": True, "dtype": torch.float16, **changes}))
        return {name: moved(value) for name, value in real.items()}

    with FakeTensorMode(allow_non_fake_inputs=True):
        yield inputs


@ignore_data_ptr
@by_prepare
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_launch_is_prepared_without_a_look_at_any_number(
    prepare_it: Callable, dtype: torch.dtype, on_gpu: Callable
) -> None:
    """With slopes and without; they are made on the GPU too."""
    for changes in ({}, {"alibi_slopes": None}):
        prepared = prepare_it(**on_gpu(dtype=dtype, strided_q=True) | changes)
        is_v2 = prepare_it is prepare_v2
        for one in (prepared.partitions, prepared.reduce) if is_v2 else (prepared,):
            tensors = [a for a in one.arguments.values() if isinstance(a, torch.Tensor)]
            assert all(tensor.is_cuda and tensor.numel() for tensor in tensors)


@ignore_data_ptr
@by_prepare
def test_without_max_seq_len_there_is_room_for_the_whole_table(
    prepare_it: Callable, on_gpu: Callable
) -> None:
    arguments = on_gpu()
    room = arguments["block_tables"].shape[1] * 16
    both = prepare_it(**arguments), prepare_it(**arguments, max_seq_len=room)
    prepared, told = (getattr(one, "partitions", one) for one in both)
    assert (prepared.grid, prepared.shared_bytes) == (told.grid, told.shared_bytes)


@by_prepare
@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_tensors_on_two_devices_are_refused(
    prepare_it: Callable, device: str, on_gpu: Callable
) -> None:
    arguments = on_gpu() | {"seq_lens": torch.zeros(2, dtype=torch.int32, device=device)}
    with pytest.raises(ValueError, match=rf"seq_lens.device is {device}; it must be cuda:0, as q"):
        prepare_it(**arguments)


@ignore_data_ptr
def test_a_probe_on_a_gpu_is_refused(on_gpu: Callable) -> None:
    for prepare_it in (prepare_naive, prepare_v2):
        with pytest.raises(ValueError, match=r"q.device is .*; it must be on the CPU"):
            prepare_it(**on_gpu()).probe()


def test_the_simulator_is_named_once_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(cuda_launch, "_said", False)
    inputs = arguments(problem(seq_lens=(9,), num_heads=1, num_kv_heads=1))
    prepare_v1(**inputs).simulate()
    assert capsys.readouterr().out == ""
    for _ in range(2):
        launch.paged_attention_v1(**inputs)
        prepare_v2(**inputs).run()
    assert capsys.readouterr().out == cuda_launch.SIMULATED + "\n"
