"""my_kernel.py: what a reader has written is kept, named, used, and never lost."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pa_tutorial.bench.gpu import my_kernels
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.exercises.__main__ import main
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.kernel_file import KernelFile, imported
from pa_tutorial.exercises.my_kernel import PLACE, MyKernelError, load, save, saved
from pa_tutorial.kernels.cuda_backends import v1_backend
from simt.microscope import microscope
from tests.exercises.blank_cells import function_of

BY_ELEMENT = function_of(all_blanks()["load_key"], all_blanks()["load_key"].source)
OURS = KernelFile("v1").module().qk_dot


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "my_kernel.py"
    monkeypatch.setenv(PLACE, str(path))
    return path


def test_nothing_is_written_while_nothing_is_the_readers(path: Path) -> None:
    save(KernelFile("v1", OURS))
    assert not path.exists()


def test_a_saved_file_names_what_is_the_readers(path: Path, capsys: pytest.CaptureFixture) -> None:
    save(KernelFile("v1", BY_ELEMENT, OURS))
    module = imported(path.read_text(encoding="utf-8"))
    assert module.YOURS == ("load_key",)
    assert "Yours: load_key. Ours: " in capsys.readouterr().out
    (text,) = saved("v1")
    assert "def load_key(" in text
    assert KernelFile("v1", text).written() == {"load_key"}


@pytest.mark.rest("notebook 11 checks one")
def test_a_file_is_checked_as_a_stage(path: Path, capsys: pytest.CaptureFixture) -> None:
    save(KernelFile("v1", BY_ELEMENT))
    wrong = path.read_text(encoding="utf-8").replace("% VEC_SIZE", "% X")
    path.write_text(wrong.replace("vec_idx * VEC_SIZE // X", "vec_idx"), encoding="utf-8")
    assert main(["cuda_v1", str(path), "--short"]) == 1
    assert "Yours: load_key. Ours: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["kv_cache", str(path)])
    assert "invalid choice: 'kv_cache' (choose from" in capsys.readouterr().err


def test_a_saved_file_runs_under_the_microscope_and_is_timed(path: Path) -> None:
    save(KernelFile("v1", BY_ELEMENT))
    step = WORKED_EXAMPLE.paged("vllm")
    launch = my_kernels(path)["my cuda_v1"].prepare(step)
    assert torch.equal(launch.run(trace=0), v1_backend.prepare(step).run())
    assert "def load_key" in microscope(launch.report).as_json


def test_kernels_gather_in_one_file_and_nothing_of_the_readers_is_lost(path: Path) -> None:
    by_vec = all_blanks()["load_key_by_vec"]
    save(KernelFile("v1", BY_ELEMENT))
    before = path.read_text(encoding="utf-8")
    save(KernelFile("naive", function_of(all_blanks()["dot"], all_blanks()["dot"].source)))
    save(KernelFile("vectors", function_of(by_vec, by_vec.source)))
    assert imported(path.read_text(encoding="utf-8")).YOURS == ("dot", "load_key")
    beside = [p.read_text(encoding="utf-8") for p in path.parent.glob("my_kernel_*.py")]
    assert any("range(VEC_SIZE)" in text and '"load_key"' in text for text in beside)
    assert 'YOURS = (\n    "load_key",\n)' in before


DAMAGED: dict[str, Callable[[str], str]] = {
    "is damaged: ": lambda text: text.replace("def load_key(", "def load_key((("),
    "YOURS is missing": lambda text: text.replace("YOURS = (", "MINE = ("),
    "YOURS names load_key, which it lacks": lambda text: text.replace("load_key(k_v", "load(k_v"),
    "YOURS is 5; it must be": lambda text: text.replace(
        'YOURS = (\n    "load_key",\n)', "YOURS = 5"
    ),
    "it isn't UTF-8": lambda text: text.replace("# ", "# \udcff", 1),
}


@pytest.mark.parametrize("words", DAMAGED)
def test_a_damaged_file_is_named_kept_and_ours_take_over(
    path: Path, words: str, capsys: pytest.CaptureFixture
) -> None:
    save(KernelFile("v1", BY_ELEMENT))
    damaged = DAMAGED[words](path.read_text(encoding="utf-8"))
    path.write_text(damaged, encoding="utf-8", errors="surrogateescape")
    assert saved("v1") == ()
    said = capsys.readouterr().out
    assert words in said
    assert "All functions are ours." in said
    with pytest.raises(MyKernelError, match=words):
        load(path, "v1")
    save(KernelFile("v1", BY_ELEMENT))
    kept = (path.parent / "my_kernel_1.py").read_text(encoding="utf-8", errors="surrogateescape")
    assert kept == damaged


def test_ours_takes_the_place_of_a_function_with_old_parameters(
    path: Path, capsys: pytest.CaptureFixture
) -> None:
    save(KernelFile("v1", BY_ELEMENT))
    now = path.read_text(encoding="utf-8")
    path.write_text(now.replace("load_key(k_vecs, k_block,", "load_key(k_vecs,"), encoding="utf-8")
    assert saved("v1") == ()
    assert "my_kernel.py is old: load_key takes (k_vecs, physical" in capsys.readouterr().out


def test_a_file_without_the_kernel_is_refused(path: Path) -> None:
    save(KernelFile("v1", BY_ELEMENT))
    with pytest.raises(MyKernelError, match="isn't a complete v2: it lacks"):
        load(path, "v2")
    with pytest.raises(MyKernelError, match="doesn't exist"):
        load(path.with_name("other.py"), "v1")


def test_ours_in_a_written_file_is_never_the_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a cell with a syntax error: the name is still what `import *` brought."""
    monkeypatch.syspath_prepend(tmp_path)
    KernelFile("v1", BY_ELEMENT).write(tmp_path / "kernel_written.py")
    written = import_module("kernel_written")
    assert KernelFile("v1", written.qk_dot, written.load_key).written() == {"load_key"}


def test_our_function_of_another_file_does_not_take_the_place_of_ours() -> None:
    by_element, vectors = KernelFile("v1").module().load_key, KernelFile("vectors")
    assert KernelFile("vectors", by_element).text() == vectors.text()
    assert KernelFile("vectors", BY_ELEMENT, by_element).text() == vectors.text()
    assert KernelFile("vectors", BY_ELEMENT).text() != vectors.text()
