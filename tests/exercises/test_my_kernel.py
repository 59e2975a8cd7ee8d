"""my_kernel/: what a reader has written is kept, named, used, and never lost.

test_my_pages.py tests the saving itself, which is one for my_pages.py and for these files.
"""

import ast
import re
import sys
from collections.abc import Callable
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
from pa_tutorial.exercises.saved_files import names_of_reader
from pa_tutorial.exercises.whose import NOT_RUN, functions_of
from pa_tutorial.kernels import sources, template
from pa_tutorial.kernels.sources import FILES, KernelFileError
from simt import SimtError
from simt.microscope import microscope
from tests.exercises.blank_cells import changed, function_of

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


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))


def change(path: Path, old: str, new: str) -> str:
    """Change a saved file; its text."""
    before = path.read_text(encoding="utf-8")
    after = before.replace(old, new)
    assert after != before
    path.write_text(after, encoding="utf-8")
    return after


def test_a_saved_file_names_what_is_the_readers(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    text = (folder / "v1.py").read_text(encoding="utf-8")
    assert names_of_reader(text) == {"load_key"}
    assert "my_kernel/v1.py is written. Yours: load_key. Ours: " in capsys.readouterr().out
    ((source,),) = saved("v1").values()
    assert source.text.splitlines()[1] == text.splitlines()[source.line] == "def load_key("
    assert not is_ours(source)


def test_saved_files_run_under_the_microscope_and_are_timed(folder: Path) -> None:
    save(MINE)
    launch = my_kernels(folder)["my cuda_v1"].prepare(STEP)
    report = launch.simulate(trace=0)
    assert torch.equal(launch.out, V1.prepare(STEP).run())
    assert "def load_key" in microscope(report).as_json


def test_a_finding_in_a_saved_file_names_its_line(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    text = change(folder / "v1.py", "first + e]", "first + X]")
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "first + X]" in one)
    with pytest.raises(SimtError, match=rf"line {line} of load_key"):
        load(folder, "v1").prepare(STEP).run()
    assert main(["cuda_v1", str(folder), "--short"]) == 1
    assert f"line {line} of load_key" in capsys.readouterr().out


def test_kernels_gather_and_nothing_of_the_readers_is_lost(folder: Path) -> None:
    save(MINE)
    save(BACKENDS["naive"].with_functions(naive=[changed("dot")]))
    mine = V1_VECTOR.with_functions(**saved("v1_vector"))
    save(mine.with_functions(v1=[changed("qk_dot")], v1_vector=[BY_VEC]))
    save(V1.with_functions(v1=[changed("warp_max")]))  # from another notebook
    yours = {p.name: names_of_reader(p.read_text(encoding="utf-8")) for p in folder.glob("*.py")}
    assert yours == {
        "naive.py": {"dot"},
        "v1.py": {"load_key", "qk_dot", "warp_max"},
        "v1_vector.py": {"load_key"},
    }
    found = {file: len(functions) for file, functions in saved("v2").items()}
    assert found == {"v1": 3, "v1_vector": 1}


def test_a_file_may_have_constants_and_functions_of_its_own_and_keeps_them(folder: Path) -> None:
    save(MINE)
    change(folder / "v1.py", "# Of q and K\n", "MY_X = X\ndef twice(x): return 2 * x\n")
    change(folder / "v1.py", "* VEC_SIZE % X", "* VEC_SIZE % MY_X")
    save(V1.with_functions(v1=[changed("qk_dot")]))
    assert files_in(folder) == ["v1.py"]
    assert torch.equal(load(folder, "v1").prepare(STEP).run(), V1.prepare(STEP).run())


def with_helper(name: str, old: str) -> tuple[Callable, Callable]:
    """Our answer to a blank as one that calls a function of the reader's, and this function."""
    helper = "@cuda.jit(device=True)\ndef twice(a):\n    return 2 * a\n\n\n@cuda.jit"
    blank = all_blanks()[name]
    text = blank.source.replace(old, f"twice({old}) // 2").replace("@cuda.jit", helper)
    function = function_of(blank, text)
    return function, function.py_func.__globals__["twice"]


def test_a_function_goes_with_the_one_of_its_file_or_of_an_earlier_one_that_it_calls(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    bounds, helper = with_helper("bounds_of_partition", "(PARTITION_SIZE // BLOCK_SIZE)")
    save(V2.with_functions(v1=[helper]))
    save(V2.with_functions(v2=[bounds]))
    words = capsys.readouterr().out
    assert "v1.py has no twice, and none of yours calls it" in words
    assert "bounds_of_partition uses twice: " in words
    assert files_in(folder) == []
    key, _ = with_helper("load_key", "thread_idx % THREAD_GROUP_SIZE")
    save(V2.with_functions(v1=[key, helper], v2=[bounds]))
    assert {file: len(functions) for file, functions in saved("v2").items()} == {"v1": 2, "v2": 1}
    assert "It is replaced with ours" not in capsys.readouterr().out
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


@pytest.mark.parametrize("kernel", FILES)
def test_those_functions_are_counted_that_run(kernel: str) -> None:
    module, called = template.made(kernel), {*functions_of(kernel)}
    kernels = [name for name in called if not getattr(module, name).targetoptions["device"]]
    assert {*NOT_RUN.get(kernel, ())}.isdisjoint(called)
    reached, more = set(), {*kernels}
    while more := more - reached:
        reached |= more
        trees = [ast.parse(sources.source_of(getattr(module, name)).text) for name in more]
        more = set().union(*map(sources.names_used, trees)) & called
    assert reached == called


def test_what_a_kernel_has_of_the_readers_is_counted(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    assert saved("v1") == {}
    assert "has no v1.py yet.\n0 of 13 functions of v1 are yours." in capsys.readouterr().out
    save(V1_VECTOR.with_functions(v1=[BY_ELEMENT, changed("warp_max")], v1_vector=[BY_VEC]))
    capsys.readouterr()
    for kernel, count, of_v1 in (
        ("v1", "2 of 13", "load_key, warp_max"),
        ("v1_vector", "2 of 13", "warp_max"),  # which defines load_key again
        ("v2", "2 of 18", "warp_max"),
    ):
        backend = BACKENDS[kernel].with_functions(**saved(kernel))
        words = f"{count} functions of {kernel} are yours"
        assert yours(backend) == yours(load(folder, kernel)) == words
        said = capsys.readouterr().out
        assert said.count(f"{words}.\n") == 2
        assert said.count(f"v1.py: Yours: {of_v1}. Ours: ") == 2
    assert yours(MINE.with_functions(v1=[OURS.load_key])).startswith("0 of 13")


def test_plain_functions_of_sizes_are_saved_and_come_back(
    written: Path, capsys: pytest.CaptureFixture
) -> None:
    blank, row_sizes = all_blanks()["group_sizes"], all_blanks()["row_sizes"]
    save(V1, changed("group_sizes"))
    assert "sizes.py is written. Yours: group_sizes. Ours: row_sizes." in capsys.readouterr().out
    assert saved("v1") == {}  # no function of the kernel
    write_kernel(written, V1)
    kernel = import_module("kernel_written")
    assert not is_ours(kernel.group_sizes)
    assert is_ours(kernel.row_sizes)
    assert kernel.group_sizes(32, 8, 2) == blank.craft.saved_of(blank)(32, 8, 2) == (4, 2, 4)
    assert row_sizes.craft.saved_of(row_sizes) is None


def test_a_blank_goes_on_with_what_was_saved(capsys: pytest.CaptureFixture) -> None:
    blank = all_blanks()["load_key"]
    save(MINE)
    for text, says in (
        (blank.stub, "load_key, as you saved it: right in all"),
        (blank.wrong[0].made_in(blank.source), "The notebook goes on with the one that you saved."),
    ):
        goes_on = attempt("load_key", function_of(blank, text))
        assert sources.source_of(goes_on).text == blank.source
        assert says in capsys.readouterr().out
    assert not is_ours(saved_in(blank, HEAD_SIZE=96, DTYPE=torch.bfloat16))
    assert saved_in(all_blanks()["load_key_by_vec"]) is None


def test_of_two_functions_of_one_name_in_a_file_the_last_counts_and_none_is_lost(
    folder: Path,
) -> None:
    save(MINE)
    path, first = folder / "v1.py", LOAD_KEY.replace("first + e]", "e + first]")
    both = change(path, "# Of q and K\n", f"{first}\n\n# Of q and K\n")
    assert "first + e]" in saved("v1")["v1"][0].text
    save(V1.with_functions(v1=[changed("qk_dot")]))
    assert (folder / "v1_1.py").read_text(encoding="utf-8") == both
    assert path.read_text(encoding="utf-8").count("def load_key(") == 1


@pytest.mark.parametrize(
    ("begins", "newline"),
    [
        ("\ufeff", "\n"),
        ("# a form feed \x0c and \u2028 more\n", "\n"),
        ("# größer als 日本\n", "\r\n"),
    ],
)
def test_marks_and_line_ends_of_any_editor_move_no_line(
    folder: Path, begins: str, newline: str
) -> None:
    save(MINE)
    path = folder / "v1.py"
    text = begins + path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8", newline=newline)
    assert saved("v1")["v1"][0].text == LOAD_KEY
    save(V1.with_functions(v1=[changed("qk_dot")]))
    assert path.read_text(encoding="utf-8").startswith(begins.strip("\ufeff"))
    assert len(saved("v1")["v1"]) == 2
    assert files_in(folder) == ["v1.py"]


INCOMPLETE: dict[str, tuple[str, str]] = {
    "v1.py is damaged: ": ("YOURS = (", "MINE = ("),
    "it lacks load_key(k_vecs, k_block, ": ("k_vecs, k_block, phys", "k_vecs, phys"),
    "it lacks HEAD_SIZE.": ("\nHEAD_SIZE = 32", "\nHEAD_SIZE: int = 32"),
    "it lacks qk_dot(q_vecs, k_vecs).": ("def qk_dot", "def dot"),
    "can't be executed: ZeroDivisionError: ": ("\nBLOCK_SIZE = 8", "\nBLOCK_SIZE = 8 // 0"),
}


@pytest.mark.parametrize("words", INCOMPLETE)
def test_an_incomplete_file_is_refused(folder: Path, words: str) -> None:
    save(MINE)
    change(folder / "v1.py", *INCOMPLETE[words])
    with pytest.raises(KernelFileError, match=re.escape(words)):
        load(folder, "v1")
    save(MINE)
    kept = "ZeroDivision" in words  # only running it would tell
    assert files_in(folder) == (["v1.py"] if kept else ["v1.py", "v1_1.py"])


def test_what_is_no_folder_with_the_kernel_is_refused(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    with pytest.raises(MyKernelError, match=r"v1\.py is one file"):
        load(folder / "v1.py", "v1")
    (folder / "v1.py").rename(folder / "v1_1.py")
    with pytest.raises(MyKernelError, match=r"has no v1.py or v1_vector.py or v2.py"):
        load(folder, "v2")
    (folder / "v1.py").mkdir()
    with pytest.raises(MyKernelError, match=r"v1\.py can't be read: "):
        load(folder, "v1")
    assert saved("v1") == {}
    assert "v1.py can't be read: " in capsys.readouterr().out
    with pytest.raises(ValueError, match="kernel is 'cuda_v1'"):
        saved("cuda_v1")


@pytest.mark.parametrize("place", ["my_kernel", "my_kernel.py"])
def test_a_file_of_1_0_is_refused_and_left_alone(
    folder: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    old = folder.with_name("my_kernel.py")
    old.write_text('YOURS = ("load_key",)\n', encoding="utf-8")
    monkeypatch.setenv(PLACE, str(folder.with_name(place)))
    assert saved("v1") == {}
    assert "my_kernel.py is a file of version 1.0" in capsys.readouterr().out
    with pytest.raises(MyKernelError, match=r"my_kernel.py is a file of version 1.0"):
        load(folder.with_name(place), "v1")
    save(MINE)
    assert old.read_text(encoding="utf-8") == 'YOURS = ("load_key",)\n'
    assert folder.exists() == (place == "my_kernel")


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "kernel_written.py"
    sys.modules.pop("kernel_written", None)


def test_a_written_kernel_has_the_readers_functions_and_other_sizes(written: Path) -> None:
    mine = V2.with_functions(v1=[BY_ELEMENT, changed("qk_dot")])
    for head_size in (32, 96):
        write_kernel(written, mine, HEAD_SIZE=head_size, DTYPE=torch.float32)
        kernel = import_module("kernel_written")
        assert head_size == kernel.HEAD_SIZE
        assert (kernel.VEC_SIZE, kernel.X) == (1, 4)
    # As after a cell with a syntax error, a name is still what `import *` brought. v1_vector.py
    # defines load_key and qk_dot again.
    assert is_ours(kernel.load_key)
    assert is_ours(kernel.reduce_partitions)
    write_kernel(written, mine.with_functions(v1_vector=[BY_VEC]))
    kernel = import_module("kernel_written")
    assert not is_ours(kernel.load_key)
    assert is_ours(kernel.qk_dot)


def test_a_kernel_that_another_notebook_writes_again_is_imported_as_it_was(written: Path) -> None:
    """Between the cell that writes it and the cell that imports it, with other sizes."""
    write_kernel(written, MINE, HEAD_SIZE=64)
    written.write_text("\n\n" + sources.text_of("v1"), encoding="utf-8")
    kernel = import_module("kernel_written")
    assert kernel.HEAD_SIZE == 64
    assert sources.source_of(kernel.load_key).text == LOAD_KEY


def test_what_makes_no_kernel_is_not_written(written: Path, folder: Path) -> None:
    with pytest.raises(KernelFileError, match="HEADSIZE"):
        write_kernel(written, V1, HEADSIZE=64)
    save(MINE)
    with pytest.raises(MyKernelError, match="whole files, as `load` gives"):
        write_kernel(written, load(folder, "v1"))
    assert not written.exists()
