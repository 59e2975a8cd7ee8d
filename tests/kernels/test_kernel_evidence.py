"""What the compiler said is recorded for a kernel's source, and shown where it cannot be asked."""

import json
from pathlib import Path

import pytest
from numba import cuda

from pa_tutorial.kernels import evidence


@cuda.jit(device=True)
def doubled(x):
    return 2 * x


@cuda.jit
def fill(out):
    out[cuda.threadIdx.x] = doubled(cuda.threadIdx.x)


@cuda.jit
def other(out):
    out[cuda.threadIdx.x] = 1


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A record of our own, made with the compiler that is installed, if there is one."""
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps({"compiler": evidence.installed(), "answers": {}}), encoding="utf-8")
    monkeypatch.setattr(evidence, "FILE", file)
    return file


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "installed", lambda: dict.fromkeys(evidence.COMPILER))


def test_an_answer_is_kept_only_while_notebooks_are_recorded(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evidence.answer("fill", fill, lambda: "said") == "said"
    without_compiler(monkeypatch)
    assert evidence.answer("fill", fill, lambda: "said") == evidence.UNKNOWN


def test_elsewhere_the_record_is_shown_for_the_same_source_only(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(evidence.RECORDING, "1")
    evidence.answer("fill", fill, lambda: [40, "2 x 8"])
    monkeypatch.delenv(evidence.RECORDING)
    without_compiler(monkeypatch)
    assert evidence.answer("fill", fill, lambda: 1 / 0) == [40, "2 x 8"]
    assert evidence.answer("fill", other, lambda: 1 / 0) == evidence.UNKNOWN
    assert "? " in str(evidence.compared({"other": other}, 128, None))


def test_a_device_function_is_part_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "def doubled" in "".join(evidence.sources(fill))
    assert "def doubled" not in "".join(evidence.sources(other))


@pytest.mark.parametrize("name", evidence.COMPILER)
def test_another_version_of_any_part_is_another_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = evidence.recorded()["compiler"]
    monkeypatch.setattr(evidence, "installed", lambda: recorded)
    assert evidence.is_asked()
    monkeypatch.setattr(evidence, "installed", lambda: {**recorded, name: "0.0"})
    assert not evidence.is_asked()
