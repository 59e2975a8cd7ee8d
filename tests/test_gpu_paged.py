"""What `make gpu` does with the paged kernels, with the simulator in the GPU's place."""

import pytest

from pa_tutorial.bench import gpu, gpu_paged
from pa_tutorial.cases import CASES
from pa_tutorial.kernels.launch import Launch

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
