"""What `make gpu` does with the cache kernels, with the simulator in the GPU's place."""

import pytest
import torch

from pa_tutorial.bench import gpu_cache


@pytest.fixture(autouse=True)
def _few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((torch.bfloat16, 80, 8), (torch.float32, 80, 16))
    monkeypatch.setattr(gpu_cache, "SIZES", sizes)


def test_both_kernels_write_the_bits_of_torch(capsys: pytest.CaptureFixture) -> None:
    assert gpu_cache.compare(10, device="cpu") == {"equal": 2, "wrong": []}
    assert "2 of 2 sizes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["reshape_and_cache_by_kernel", "copy_blocks"])
def test_a_kernel_that_writes_nothing_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_cache, name, lambda *args: None)
    result = gpu_cache.compare(10, device="cpu")
    assert result["equal"] == 0
    assert [line.endswith(f": {name}") for line in result["wrong"]] == [True, True]


def test_an_error_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(gpu_cache, "copy_blocks", fail)
    wrong = gpu_cache.compare(10, device="cpu")["wrong"]
    assert wrong[0] == "torch.bfloat16, 80, 8: RuntimeError: no such device"
