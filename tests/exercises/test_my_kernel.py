"""my_kernel/: what a reader has written is kept, named, used, and never lost.

test_my_pages.py tests the saving itself, which is one for my_pages.py and for these files.
"""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from pa_tutorial.bench.gpu import my_kernels
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.exercises import attempt
from pa_tutorial.exercises.__main__ import main
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.my_kernel import (
    PLACE,
    MyKernelError,
    load,
    save,
    saved,
    saved_in,
    write_kernel,
    yours,
)
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.ours import is_ours
from pa_tutorial.kernels import sources
from pa_tutorial.kernels.sources import KernelFileError
from simt.microscope import microscope
from tests.exercises.blank_cells import change, changed, files_in, function_of

V1, V1_VECTOR, V2 = (BACKENDS[kernel] for kernel in ("v1", "v1_vector", "v2"))
BY_ELEMENT, BY_VEC = changed("load_key"), changed("load_key_by_vec")
LOAD_KEY = all_blanks()["load_key"].source
OURS = V1.namespace()
MINE = V1.with_functions(v1=[BY_ELEMENT, OURS.qk_dot])
STEP = WORKED_EXAMPLE.paged("vllm")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my_kernel"
    monkeypatch.setenv(PLACE, str(folder))
    return folder


def test_saved_files_run_under_the_microscope_and_a_finding_names_their_line(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    launch = my_kernels(folder)["my cuda_v1"].prepare(STEP)
    report = launch.simulate(trace=0)
    assert torch.equal(launch.out, V1.prepare(STEP).run())
    assert "def load_key" in microscope(report).as_json
    lines = change(folder / "v1.py", "first + e]", "first + X]").splitlines()
    (number,) = (n for n, line in enumerate(lines, start=1) if "first + X]" in line)
    assert main(["cuda_v1", str(folder), "--short"]) == 1
    assert f"line {number} of load_key" in capsys.readouterr().out


def test_kernels_gather_and_nothing_of_the_readers_is_lost(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    save(BACKENDS["naive"].with_functions(naive=[changed("dot")]))
    mine = V1_VECTOR.with_functions(**saved("v1_vector"))
    save(mine.with_functions(v1=[changed("qk_dot")], v1_vector=[BY_VEC]))
    save(V1.with_functions(v1=[changed("warp_max")]))  # from another notebook
    words = capsys.readouterr().out
    assert "my_kernel/v1.py is written. Yours: load_key, qk_dot, warp_max. " in words
    assert files_in(folder) == ["naive.py", "v1.py", "v1_vector.py"]
    for kernel, count, of_v1 in (
        ("v1", "3 of 13", "load_key, qk_dot, warp_max"),
        ("v2", "2 of 18", "warp_max"),  # v1_vector defines the others again
    ):
        backend = BACKENDS[kernel].with_functions(**saved(kernel))
        words = f"{count} functions of {kernel} are yours"
        assert yours(backend) == yours(load(folder, kernel)) == words
        assert capsys.readouterr().out.count(f"v1.py: Yours: {of_v1}. Ours: ") == 2
    assert yours(MINE.with_functions(v1=[OURS.load_key])).startswith("0 of 13")


def test_a_function_goes_with_the_one_of_an_earlier_file_that_it_calls(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    helper = "@cuda.jit(device=True)\ndef twice(a):\n    return 2 * a\n\n\n@cuda.jit"
    calls = "(PARTITION_SIZE // BLOCK_SIZE)", "(twice(PARTITION_SIZE // BLOCK_SIZE) // 2)"
    bounds = changed("bounds_of_partition", calls, ("@cuda.jit", helper))
    twice = bounds.py_func.__globals__["twice"]
    save(V2.with_functions(v2=[bounds]))
    assert "bounds_of_partition uses twice: " in capsys.readouterr().out
    key = changed("load_key", ("thread_idx % T", "twice(thread_idx) // 2 % T"), twice=twice)
    save(V2.with_functions(v1=[key, twice], v2=[bounds]))
    assert {file: len(functions) for file, functions in saved("v2").items()} == {"v1": 2, "v2": 1}
    change(folder / "v1.py", "return 2 * a", "return MINE * a")  # none of them fits any more
    assert saved("v2") == {}
    words = capsys.readouterr().out
    assert "v1.py: twice uses MINE" in words
    assert "v2.py: bounds_of_partition uses twice" in words


def test_what_a_notebook_began_with_still_runs_when_another_has_saved_since(folder: Path) -> None:
    save(MINE)
    mine = V1.with_functions(**saved("v1"))
    change(folder / "v1.py", "# Of q and K\n", "# All lines below move.\n# Of q and K\n")
    save(V1.with_functions(v1=[changed("load_key", ("first + e]", "e + first]"))]))
    assert torch.equal(mine.prepare(STEP).run(), V1.prepare(STEP).run())


def test_a_blank_goes_on_with_what_was_saved(capsys: pytest.CaptureFixture) -> None:
    blank = all_blanks()["load_key"]
    save(MINE)
    for text in (blank.stub, blank.wrong[0].made_in(blank.source)):
        goes_on = attempt("load_key", function_of(blank, text))
        assert sources.source_of(goes_on).text == blank.source
    assert "goes on with the one that you saved." in capsys.readouterr().out
    assert not is_ours(saved_in(blank, HEAD_SIZE=96, DTYPE=torch.bfloat16))
    assert saved_in(all_blanks()["load_key_by_vec"]) is None


def test_marks_and_line_ends_of_any_editor_move_no_line(folder: Path) -> None:
    save(MINE)
    path = folder / "v1.py"
    text = "\ufeff# \x0c größer\n" + path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8", newline="\r\n")
    assert saved("v1")["v1"][0].text == LOAD_KEY
    save(V1.with_functions(v1=[changed("qk_dot")]))
    assert path.read_text(encoding="utf-8").startswith("# \x0c größer\n")
    assert files_in(folder) == ["v1.py"]


def test_an_incomplete_file_is_refused(folder: Path) -> None:
    save(MINE)
    change(folder / "v1.py", "\nBLOCK_SIZE = 8", "\nBLOCK_SIZE = 8 // 0")
    with pytest.raises(KernelFileError, match="can't be executed: ZeroDivisionError: "):
        load(folder, "v1")
    save(MINE)  # only running it would tell
    change(folder / "v1.py", "def qk_dot", "def dot")
    with pytest.raises(KernelFileError, match=r"lacks qk_dot\(q_vecs, k_vecs\)"):
        load(folder, "v1")
    save(MINE)
    assert files_in(folder) == ["v1.py", "v1_1.py"]


def test_what_can_not_be_read_is_refused_and_left_alone(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    (folder / "v1.py").mkdir(parents=True)
    with pytest.raises(MyKernelError, match=r"v1\.py can't be read: "):
        load(folder, "v1")
    assert saved("v1") == {}
    assert "v1.py can't be read: " in capsys.readouterr().out
    with pytest.raises(MyKernelError, match=r"has no v1.py or v1_vector.py or v2.py"):
        load(folder.parent, "v2")
    (folder / "v1.py").rmdir()
    folder.rmdir()
    folder.write_text("YOURS = ()\n", encoding="utf-8")  # version 1.0 saved one file
    assert saved("v1") == {}
    save(MINE)
    assert capsys.readouterr().out.count("my_kernel is a file of version 1.0") == 2
    assert folder.read_text(encoding="utf-8") == "YOURS = ()\n"


def test_a_written_kernel_has_the_readers_functions_and_other_sizes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kernel_written", None)  # and remove it at the end
    path = tmp_path / "kernel_written.py"
    with pytest.raises(KernelFileError, match="HEADSIZE"):
        write_kernel(path, V1, HEADSIZE=64)
    mine = V2.with_functions(v1=[BY_ELEMENT, changed("qk_dot")])
    for head_size in (32, 96):
        write_kernel(path, mine, HEAD_SIZE=head_size, DTYPE=torch.float32)
        kernel = import_module("kernel_written")
        assert head_size == kernel.HEAD_SIZE
        assert (kernel.VEC_SIZE, kernel.X) == (1, 4)
    # As after a cell with a syntax error, a name is still what `import *` brought. v1_vector.py
    # defines load_key and qk_dot again.
    assert is_ours(kernel.load_key)
    write_kernel(path, mine.with_functions(v1_vector=[BY_VEC]))
    kernel = import_module("kernel_written")
    assert not is_ours(kernel.load_key)
    assert is_ours(kernel.qk_dot)
    save(MINE, changed("group_sizes"))
    with pytest.raises(MyKernelError, match="whole files"):
        write_kernel(path, load(folder, "v1"))
    write_kernel(path, V1)
    path.write_text("# Another notebook has written it.\n", encoding="utf-8")
    kernel = import_module("kernel_written")
    assert sources.source_of(kernel.load_key).text == LOAD_KEY
    assert kernel.group_sizes(32, 8, 2) == (4, 2, 4)
    assert (is_ours(kernel.group_sizes), is_ours(kernel.row_sizes)) == (False, True)
