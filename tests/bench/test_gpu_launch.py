"""CUDA tensors, without a GPU: what is read of them, and how a launch is put on a stream."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from kernel_inputs import arguments, problem
from numba import cuda
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
    unset_fake_temporarily,
)

from pa_tutorial.kernels import gpu_launch, launch, prepare, running
from pa_tutorial.kernels.gpu_launch import DEFAULT_SHARED, OnGpu, allow_shared

PREPARE = (launch.prepare_naive, launch.prepare_v1, launch.prepare_v2)
by_prepare = pytest.mark.parametrize("prepare_it", PREPARE, ids=lambda f: f.__name__)
MOST_SHARED = 100 * 1024


# Tensors without numbers: whoever looks at their numbers, and so would wait for a GPU, fails.


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, object]]]:
    """Makes arguments whose tensors say that they are on a GPU."""
    monkeypatch.setattr(prepare, "max_shared_bytes", lambda: MOST_SHARED)
    with FakeTensorMode(allow_non_fake_inputs=True):

        def inputs(**changes: object) -> dict[str, object]:
            with unset_fake_temporarily():
                real = arguments(problem(**{"alibi": True, "dtype": torch.float16, **changes}))
            return {name: moved(value) for name, value in real.items()}

        def moved(value: object) -> object:
            if not isinstance(value, torch.Tensor):
                return value
            shape, stride = value.shape, value.stride()
            return torch.empty_strided(shape, stride, dtype=value.dtype, device="cuda")

        yield inputs


ignore_data_ptr = pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")


def test_the_stand_in_sees_a_look_at_the_numbers(on_gpu: Callable) -> None:
    seq_lens = on_gpu()["seq_lens"]
    for look in (lambda: int(seq_lens.max()), lambda: seq_lens.tolist(), lambda: bool(seq_lens[0])):
        with pytest.raises(RuntimeError):
            look()


@ignore_data_ptr
@by_prepare
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_launch_is_prepared_without_a_look_at_any_number(
    prepare_it: Callable, dtype: torch.dtype, on_gpu: Callable
) -> None:
    prepared = prepare_it(**on_gpu(dtype=dtype, strided_q=True))
    launches = [prepared.partitions, prepared.reduce] if prepare_it is PREPARE[2] else [prepared]
    for one in launches:
        tensors = [a for a in one.kernel_arguments if isinstance(a, torch.Tensor)]
        assert all(tensor.is_cuda and tensor.numel() for tensor in tensors)


@ignore_data_ptr
@by_prepare
def test_slopes_that_are_not_given_are_made_on_the_gpu(
    prepare_it: Callable, on_gpu: Callable
) -> None:
    prepared = prepare_it(**on_gpu() | {"alibi_slopes": None})
    slopes = getattr(prepared, "partitions", prepared).arguments["alibi_slopes"]
    assert slopes.is_cuda


@ignore_data_ptr
@by_prepare
def test_without_max_seq_len_there_is_room_for_the_whole_table(
    prepare_it: Callable, on_gpu: Callable
) -> None:
    arguments = on_gpu()
    room = arguments["block_tables"].shape[1] * 16
    prepared, told = prepare_it(**arguments), prepare_it(**arguments, max_seq_len=room)
    if prepare_it is launch.prepare_v2:
        prepared, told = prepared.partitions, told.partitions
    assert (prepared.grid, prepared.shared_bytes) == (told.grid, told.shared_bytes)


@by_prepare
def test_tensors_on_two_devices_are_refused(prepare_it: Callable, on_gpu: Callable) -> None:
    arguments = on_gpu() | {"seq_lens": torch.zeros(2, dtype=torch.int32, device="cpu")}
    with pytest.raises(ValueError, match=r"seq_lens.device is cpu; it must be cuda:0, as q"):
        prepare_it(**arguments)


@by_prepare
def test_tensors_on_two_gpus_are_refused(prepare_it: Callable, on_gpu: Callable) -> None:
    arguments = on_gpu() | {"block_tables": torch.empty(2, 4, dtype=torch.int32, device="cuda:1")}
    with pytest.raises(ValueError, match=r"block_tables.device is cuda:1; it must be cuda:0, as q"):
        prepare_it(**arguments)


def test_v1_beyond_the_shared_memory_of_this_gpu_says_to_use_v2(on_gpu: Callable) -> None:
    arguments = on_gpu()
    arguments["block_tables"] = torch.empty(2, 2000, dtype=torch.int32, device="cuda")
    message = r"has at most 102,400, 4 for each token\. paged_attention_v2 has no such limit"
    with pytest.raises(ValueError, match=message):
        launch.prepare_v1(**arguments)


@ignore_data_ptr
def test_a_probe_on_a_gpu_is_refused(on_gpu: Callable) -> None:
    for function in (launch.paged_attention_naive, launch.paged_attention_v2):
        with pytest.raises(ValueError, match="probe is a dict; on a GPU it must be None"):
            function(**on_gpu(), probe={})


# The launch --------------------------------------------------------------------------------------


class Kernel:
    """Stands for a Numba kernel: writes down its launches. It warns of a small grid as Numba."""

    def __init__(self) -> None:
        self.configurations: list[tuple] = []
        self.launches: list[tuple] = []

    def __getitem__(self, configuration: tuple) -> Callable:
        warnings.warn("Grid size 1 will likely result in GPU under-utilization", stacklevel=2)
        self.configurations.append(configuration)
        return lambda *args: self.launches.append((configuration[2], args))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for torch's current stream, and for Numba's way to wrap tensors and streams."""
    seen = SimpleNamespace(stream=0, wrapped=[], allowed=[])

    def wrap(tensor: torch.Tensor, sync: bool) -> tuple:
        seen.wrapped.append((tensor.data_ptr(), tensor.requires_grad, sync))
        return ("wrapped", tensor.data_ptr())

    current = lambda: SimpleNamespace(cuda_stream=seen.stream)  # noqa: E731
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(cuda, "as_cuda_array", wrap)
    monkeypatch.setattr(cuda, "external_stream", lambda handle: ("stream", handle))
    monkeypatch.setattr(gpu_launch, "allow_shared", lambda *args: seen.allowed.append(args))
    return seen


def test_arguments_are_wrapped_once_and_launched_often(device: SimpleNamespace) -> None:
    kernel, a = Kernel(), torch.zeros(3, requires_grad=True)
    on_gpu = OnGpu(kernel, (4, 2, 1), 128, 1000, 96, (a, 0.5, 7))
    for _ in range(3):
        on_gpu()
    # without copy: the same memory; and without waiting for anybody
    assert device.wrapped == [(a.data_ptr(), False, False)]
    assert kernel.launches == [(0, (("wrapped", a.data_ptr()), 0.5, 7))] * 3
    assert kernel.configurations == [((4, 2, 1), 128, 0, 1000)]


def test_a_tensor_with_gaps_is_wrapped_where_it_is(device: SimpleNamespace) -> None:
    a = torch.zeros(6)[::2]
    OnGpu(Kernel(), (1, 1, 1), 128, 0, 0, (a,))
    assert device.wrapped == [(a.data_ptr(), False, False)]


def test_the_most_shared_memory_is_what_a_kernel_can_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"MAX_SHARED_MEMORY_PER_BLOCK": 48 * 1024, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 999}
    monkeypatch.setattr(cuda, "get_current_device", lambda: SimpleNamespace(**sizes))
    assert gpu_launch.max_shared_bytes() == 999


def test_tensors_of_another_gpu_than_the_current_one_are_refused(
    device: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with FakeTensorMode():
        there = torch.empty(3, device="cuda:1")
    with pytest.raises(ValueError, match="device is cuda:1; it must be cuda:0, the current device"):
        OnGpu(Kernel(), (1, 1, 1), 128, 0, 0, (1, there))


def test_every_launch_goes_to_the_stream_that_is_current_then(device: SimpleNamespace) -> None:
    kernel = Kernel()
    on_gpu = OnGpu(kernel, (1, 1, 1), 128, 0, 0, ())
    for device.stream in (0, 11, 0, 12, 11):
        on_gpu()
    streams = [stream for stream, _ in kernel.launches]
    assert streams == [0, ("stream", 11), 0, ("stream", 12), ("stream", 11)]
    assert len(kernel.configurations) == 3


@pytest.mark.parametrize(
    ("shared_bytes", "asked"),
    [(DEFAULT_SHARED - 96, False), (DEFAULT_SHARED - 95, True), (200_000, True)],
)
def test_more_than_48_kib_are_asked_for(
    shared_bytes: int, asked: bool, device: SimpleNamespace
) -> None:
    kernel = Kernel()
    OnGpu(kernel, (1, 1, 1), 128, shared_bytes, 96, (1,))
    assert device.allowed == ([(kernel, (1,), shared_bytes)] if asked else [])


@pytest.mark.needs("numba-cuda")
def test_the_driver_is_asked_for_this_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings.driver import CUfunction_attribute
    from numba.cuda.cudadrv import driver

    monkeypatch.setattr(gpu_launch, "_marked", {})
    calls = []
    function = SimpleNamespace(handle="handle", device=SimpleNamespace(id=0))
    kernel = SimpleNamespace(
        typeof_pyval=lambda value: type(value).__name__,
        compile=lambda signature: SimpleNamespace(
            library=SimpleNamespace(get_cufunc=lambda: calls.append(signature) or function)
        ),
    )
    stand_in = SimpleNamespace(cuKernelSetAttribute=lambda *args: calls.append(args))
    monkeypatch.setattr(driver, "driver", stand_in)
    attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    # A later launch that needs less does not take from the one before.
    for num_bytes, marked in ((60_000, 60_000), (50_000, 60_000), (70_000, 70_000)):
        calls.clear()
        allow_shared(kernel, (1, 0.5), num_bytes)
        assert calls == [("int", "float"), (attribute, marked, "handle", 0)]


# Where a launch runs -------------------------------------------------------------------------


@pytest.fixture
def not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_said", False)


@pytest.mark.usefixtures("not_said")
def test_the_simulator_is_named_once(capsys: pytest.CaptureFixture) -> None:
    inputs = arguments(problem(seq_lens=(9,), num_heads=1, num_kv_heads=1))
    for _ in range(2):
        launch.paged_attention_v1(**inputs)
        launch.paged_attention_v2(**inputs)
        launch.prepare_v2(**inputs).run()
    assert capsys.readouterr().out == running.SIMULATED + "\n"


@pytest.mark.usefixtures("not_said")
def test_who_asks_for_the_simulator_is_not_told(capsys: pytest.CaptureFixture) -> None:
    launch.prepare_v1(**arguments(problem(seq_lens=(9,)))).simulate()
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("not_said")
def test_with_cuda_tensors_the_gpu_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    made, run = [], []

    def stand_in(*arguments: object) -> Callable:
        made.append(arguments)
        return lambda: run.append(arguments)

    monkeypatch.setattr(running, "OnGpu", stand_in)
    prepared = launch.prepare_v1(**arguments(problem()))
    there = dataclasses.replace(prepared, out=SimpleNamespace(is_cuda=True))
    assert there.run() is there.run() is there.out
    assert len(made) == 1
    assert len(run) == 2
    assert made[0][1:5] == (prepared.grid, 128, prepared.shared_bytes, 32 * 4 + 8 * 4)
    assert capsys.readouterr().out == ""
