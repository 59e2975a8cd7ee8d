"""What `make gpu` does with the paged kernels, with the simulator in the GPU's place."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numba
import numpy as np
import pytest
import torch
from kernel_inputs import arguments, problem

from pa_tutorial.bench import gpu, gpu_paged
from pa_tutorial.cases import CASES
from pa_tutorial.kernels.launch import Launch, prepare_naive, prepare_v1
from pa_tutorial.simt import launch

NAMES = ("decode/worked_example", "decode/bfloat16", "decode/strided_q_float16")


@pytest.fixture(autouse=True)
def _few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_paged, "CASES", {name: CASES[name] for name in NAMES})


def simulated(ready: Launch) -> None:
    ready.simulate()


def test_a_right_kernel_passes_every_case(capsys) -> None:
    results = gpu_paged.compare(run=simulated)
    for name in ("cuda_naive", "cuda_v1"):
        assert results[name] == {"passed": len(NAMES), "different": {}}
    assert "cuda_v1: 3 of 3 cases pass" in capsys.readouterr().out


def test_what_goes_wrong_there_is_a_line_of_the_report() -> None:
    def broken(ready: Launch) -> None:
        ready.simulate()
        ready.out[..., -1] = 0
        if ready.geometry.block_size == 8:
            raise RuntimeError("no such device")

    different = gpu_paged.compare(run=broken)["cuda_v1"]["different"]
    assert set(different) == set(NAMES)
    assert "no such device" in different["decode/worked_example"]
    assert "should be" in different["decode/bfloat16"]


# The way to the device and back ---------------------------------------------------------------


@dataclass(frozen=True)
class OnDevice:
    """An array there: a copy. Of its methods, only copy_to_host is needed."""

    device: "StandIn"
    array: np.ndarray

    def copy_to_host(self) -> np.ndarray:
        self.device.done.append("copy_to_host")
        return self.array.copy()


@dataclass
class StandIn:
    """numba.cuda and the kernel on it: it writes down what is asked of it, and simulates."""

    kernel: Callable
    done: list[object] = field(default_factory=list)

    def to_device(self, array: np.ndarray) -> OnDevice:
        assert isinstance(array, np.ndarray)
        assert array.size, "Numba cannot copy an empty array"
        assert array.flags.c_contiguous
        self.done.append("to_device")
        return OnDevice(self, array.copy())

    def synchronize(self) -> None:
        self.done.append("synchronize")

    def __getitem__(self, configuration: tuple) -> Callable:
        """kernel[grid, block, stream, shared_bytes]"""

        def run(*given: object) -> None:
            self.done.append(configuration)
            grid, block, _, shared_bytes = configuration
            assert not any(isinstance(a, torch.Tensor | np.ndarray) for a in given)
            here = [a.array if isinstance(a, OnDevice) else a for a in given]
            launch(self.kernel, grid, block, *here, shared_bytes=shared_bytes)

        return run


@pytest.fixture
def on_stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Launch], list[object]]:
    """Runs on_the_gpu with the stand-in, and returns what was asked of it."""

    def run(ready: Launch) -> list[object]:
        device = StandIn(ready.kernel)
        with monkeypatch.context() as patch:
            patch.setattr(numba, "cuda", device)
            gpu_paged.on_the_gpu(dataclasses.replace(ready, kernel=device))
        return device.done

    return run


by_prepare = pytest.mark.parametrize("prepare", [prepare_naive, prepare_v1])


@by_prepare
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_out_is_what_the_device_wrote(prepare: Callable, dtype: torch.dtype, on_stand_in) -> None:
    given = arguments(problem(dtype=dtype, strided_q=True, alibi=True))
    expected, ready = prepare(**given), prepare(**given)
    expected.simulate()
    on_stand_in(ready)
    assert torch.equal(ready.out, expected.out)


@by_prepare
def test_all_is_copied_there_then_launched_and_out_copied_back(
    prepare: Callable, on_stand_in
) -> None:
    ready = prepare(**arguments(problem()), num_threads=64)
    arrays = sum(isinstance(value, torch.Tensor) for value in ready.arguments.values())
    configuration = (ready.grid, 64, 0, ready.shared_bytes)
    expected = [*["to_device"] * arrays, configuration, "synchronize", "copy_to_host"]
    assert on_stand_in(ready) == expected


def test_compare_runs_on_the_gpu_unless_told_otherwise(monkeypatch, on_stand_in) -> None:
    asked = []
    to_the_gpu = gpu_paged.compare.__defaults__[0]
    assert to_the_gpu is gpu_paged.on_the_gpu
    results = gpu_paged.compare(run=lambda ready: asked.extend(on_stand_in(ready)))
    assert [results[name]["passed"] for name in gpu_paged.KERNELS] == [len(NAMES)] * 2
    assert asked.count("copy_to_host") == 2 * len(NAMES)


@by_prepare
def test_more_shared_memory_than_a_launch_gives_is_refused(prepare: Callable, on_stand_in) -> None:
    """48 KiB are 12,288 scores; Numba asks for no more, and a launch without asking fails."""
    ready = prepare(**of_length(12_289))
    with pytest.raises(ValueError, match=r"shared_bytes is 49\d+; it must be at most 49152"):
        on_stand_in(ready)
    assert ready.out.isnan().all()


@by_prepare
def test_48_kib_of_shared_memory_are_not_refused(prepare: Callable, monkeypatch) -> None:
    ready = prepare(**of_length(12_288))
    assert ready.shared_bytes == gpu_paged.MAX_DYNAMIC_SHARED

    class Reached(Exception):
        pass

    class Device:
        def to_device(self, array: np.ndarray) -> None:
            raise Reached

    monkeypatch.setattr(numba, "cuda", Device())
    with pytest.raises(Reached):
        gpu_paged.on_the_gpu(ready)


def of_length(seq_len: int) -> dict[str, object]:
    """One sequence and one head; all its blocks are block 0."""
    tables = torch.zeros(1, -(-seq_len // 16), dtype=torch.int32)
    given = arguments(problem(seq_lens=(9,), num_heads=1, num_kv_heads=1))
    return {**given, "block_tables": tables, "seq_lens": torch.tensor([seq_len], dtype=torch.int32)}


def test_make_gpu_fails_if_a_case_fails(monkeypatch, tmp_path) -> None:
    import sys

    import torch

    failed = {"cuda_v1": {"passed": 2, "different": {"decode/alibi": "why"}}}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Stand-in")
    bandwidth = dict.fromkeys(("decode_GB_per_s", "copy_GB_per_s", "fraction_of_copy"), 1.0)
    monkeypatch.setattr(gpu, "decode_bandwidth", lambda *args, **options: bandwidth)
    for name in ("simulated_kernels", "traffic"):
        monkeypatch.setattr(gpu, name, dict)
    monkeypatch.setattr(gpu, "paged_kernels", lambda: failed)
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path)])
    assert gpu.main() == 1
