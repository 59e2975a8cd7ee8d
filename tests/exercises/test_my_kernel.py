"""my_kernel/: what a reader has written is kept, named, used, and never lost."""

import ast
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module
from multiprocessing import get_context
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
from pa_tutorial.exercises.saved_files import locked, names_of_reader
from pa_tutorial.exercises.whose import NOT_RUN, blanks_in, functions_of
from pa_tutorial.kernels import sources, template
from pa_tutorial.kernels.cuda_backends import (
    naive_backend,
    v1_backend,
    v1_vector_backend,
    v2_backend,
)
from pa_tutorial.kernels.sources import FILES, KernelFileError
from simt import SimtError
from simt.microscope import microscope
from tests.exercises.blank_cells import function_of


def answer(name: str) -> Callable:
    return function_of(all_blanks()[name], all_blanks()[name].source)


BY_ELEMENT, BY_VEC = answer("load_key"), answer("load_key_by_vec")
OURS = v1_backend.namespace().qk_dot
MINE = v1_backend.with_functions(v1=[BY_ELEMENT, OURS])


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
    path.write_text(after, encoding="utf-8", errors="surrogateescape")
    return after


def test_nothing_is_written_while_nothing_is_the_readers(folder: Path) -> None:
    save(v1_backend.with_functions(v1=[OURS]))
    assert not folder.exists()


def test_a_saved_file_names_what_is_the_readers(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    assert names_of_reader((folder / "v1.py").read_text(encoding="utf-8")) == {"load_key"}
    assert "my_kernel/v1.py is written. Yours: load_key. Ours: " in capsys.readouterr().out
    ((source,),) = saved("v1").values()
    lines = (folder / "v1.py").read_text(encoding="utf-8").splitlines()
    assert source.text.splitlines()[1] == lines[source.line] == "def load_key("
    assert not is_ours(source)


def test_of_two_functions_of_one_name_the_last_says_whose_it_is(folder: Path) -> None:
    ours = v1_backend.namespace().load_key
    save(v1_backend.with_functions(v1=[BY_ELEMENT, ours]))
    assert not folder.exists()
    save(v1_backend.with_functions(v1=[ours, BY_ELEMENT]))
    assert folder.exists()


@pytest.mark.rest("notebook 11 checks one")
def test_a_folder_is_checked_as_a_stage(folder: Path, capsys: pytest.CaptureFixture) -> None:
    save(MINE)
    change(folder / "v1.py", "vec_idx * VEC_SIZE // X", "vec_idx // X")
    assert main(["cuda_v1", str(folder), "--short"]) == 1
    assert "Yours: load_key. Ours: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["kv_cache", str(folder)])
    assert "invalid choice: 'kv_cache' (choose from" in capsys.readouterr().err


def test_saved_files_run_under_the_microscope_and_are_timed(folder: Path) -> None:
    save(MINE)
    step = WORKED_EXAMPLE.paged("vllm")
    launch = my_kernels(folder)["my cuda_v1"].prepare(step)
    report = launch.simulate(trace=0)
    assert torch.equal(launch.out, v1_backend.prepare(step).run())
    assert "def load_key" in microscope(report).as_json


def test_a_finding_in_a_saved_file_names_its_line(folder: Path) -> None:
    save(MINE)
    text = change(folder / "v1.py", "first + e]", "first + X]")
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "first + X]" in one)
    with pytest.raises(SimtError, match=rf"line {line} of load_key"):
        load(folder, "v1").prepare(WORKED_EXAMPLE.paged("vllm")).run()


def test_kernels_gather_and_nothing_of_the_readers_is_lost(folder: Path) -> None:
    save(MINE)
    save(naive_backend.with_functions(naive=[answer("dot")]))
    mine = v1_vector_backend.with_functions(**saved("v1_vector"))
    save(mine.with_functions(v1=[answer("qk_dot")], v1_vector=[BY_VEC]))
    save(v1_backend.with_functions(v1=[answer("warp_max")]))  # from another notebook
    yours = {p.name: names_of_reader(p.read_text(encoding="utf-8")) for p in folder.glob("*.py")}
    assert yours == {
        "naive.py": {"dot"},
        "v1.py": {"load_key", "qk_dot", "warp_max"},
        "v1_vector.py": {"load_key"},
    }
    found = {file: len(functions) for file, functions in saved("v2").items()}
    assert found == {"v1": 3, "v1_vector": 1}


def test_what_a_new_function_replaces_stays_beside(folder: Path) -> None:
    save(MINE)
    before = change(folder / "v1.py", "first + e]", "e + first]")
    save(MINE)
    assert (folder / "v1_1.py").read_text(encoding="utf-8") == before
    save(MINE)
    assert not (folder / "v1_2.py").exists()


DAMAGED: dict[str, tuple[str, str]] = {
    "is damaged: ": ("def load_key(", "def load_key((("),
    "YOURS is missing": ("YOURS = (", "MINE = ("),
    "YOURS names load_key, which it lacks": ("def load_key(", "def load("),
    "YOURS is 5; it must be": ('YOURS = (\n    "load_key",\n)', "YOURS = 5"),
    r"YOURS is {\[\]: 5}; it must be": ('YOURS = (\n    "load_key",\n)', "YOURS = {[]: 5}"),
    "it isn't UTF-8": ("# Mine", "# \udcff"),
}


@pytest.mark.parametrize("words", DAMAGED)
def test_a_damaged_file_is_named_and_set_aside_and_ours_take_over(
    folder: Path, words: str, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    change(folder / "v1.py", *DAMAGED[words])
    damaged = (folder / "v1.py").read_bytes()
    with pytest.raises(MyKernelError, match=words):
        load(folder, "v1")
    save(MINE)
    said = capsys.readouterr().out
    assert words in said
    assert "The previous my_kernel/v1.py is now v1_1.py." in said
    (folder / "v1.py").write_bytes(damaged)
    assert saved("v1") == {}
    assert "It is now v1_2.py. All its functions are ours." in capsys.readouterr().out
    assert files_in(folder) == ["v1_1.py", "v1_2.py"]
    assert (folder / "v1_1.py").read_bytes() == (folder / "v1_2.py").read_bytes() == damaged


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("k_vecs, k_block, phys", "k_vecs, phys", "load_key takes (k_vecs, physical_block_offset,"),
        ("* VEC_SIZE % X", "* VEC_SIZE % MY_X", "load_key uses MY_X: the kernel's files have"),
    ],
)
def test_ours_takes_the_place_of_a_function_that_does_not_fit(
    folder: Path, old: str, new: str, words: str, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    change(folder / "v1.py", old, new)
    assert saved("v1") == {}
    assert words in capsys.readouterr().out
    assert main(["cuda_v1", str(folder), "--short"]) == 1
    assert "load_key" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", thread_idx\n):  # k_vecs has", ", thread_idx=1 // 0\n):  #"),
        ("@cuda.jit(device=True)\ndef load_key", "@cuda.jet\ndef load_key"),
    ],
)
def test_ours_takes_the_place_of_a_function_that_can_not_be_defined(
    folder: Path, old: str, new: str, capsys: pytest.CaptureFixture
) -> None:
    """An error out of `attempt` would leave the stub in its place."""
    save(MINE)
    change(folder / "v1.py", old, new)
    blank = all_blanks()["load_key"]
    assert is_ours(attempt(blank.name, function_of(blank, blank.stub)))
    assert saved("v1") == {}
    assert "load_key can't be defined: " in capsys.readouterr().out
    with pytest.raises(MyKernelError, match="can't be executed: "):
        load(folder, "v1")


def test_ours_takes_the_place_of_what_is_not_finished(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(MINE)
    change(folder / "v1.py", "k_vecs[j, e] = to_float(", "...\n            (")
    assert saved("v1") == {}
    assert "load_key isn't finished. It is replaced with ours." in capsys.readouterr().out


def test_a_file_may_have_constants_and_functions_of_its_own_and_keeps_them(folder: Path) -> None:
    save(MINE)
    change(folder / "v1.py", "# Of q and K\n", "MY_X = X\ndef twice(x): return 2 * x\n")
    change(folder / "v1.py", "* VEC_SIZE % X", "* VEC_SIZE % MY_X")
    save(v1_backend.with_functions(v1=[answer("qk_dot")]))
    assert files_in(folder) == ["v1.py"]
    step = WORKED_EXAMPLE.paged("vllm")
    assert torch.equal(load(folder, "v1").prepare(step).run(), v1_backend.prepare(step).run())


HELPER = "@cuda.jit(device=True)\ndef twice(a):\n    return 2 * a\n\n\n"


def with_helper(name: str, old: str) -> tuple[Callable, Callable]:
    """Our answer to a blank as one that calls a function of the reader's, and this function."""
    blank = all_blanks()[name]
    changed = blank.source.replace(old, f"twice({old}) // 2")
    assert changed != blank.source
    function = function_of(blank, HELPER + changed)
    return function, function.py_func.__globals__["twice"]


def test_a_function_may_call_the_readers_of_an_earlier_file(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    bounds, helper = with_helper("bounds_of_partition", "(PARTITION_SIZE // BLOCK_SIZE)")
    save(v2_backend.with_functions(v1=[helper], v2=[bounds]))
    assert {file: len(functions) for file, functions in saved("v2").items()} == {"v1": 1, "v2": 1}
    assert "It is replaced with ours" not in capsys.readouterr().out
    change(folder / "v1.py", "return 2 * a", "return MINE * a")  # neither fits any more
    assert saved("v2") == {}
    words = capsys.readouterr().out
    assert "v1.py: twice uses MINE" in words
    assert "v2.py: bounds_of_partition uses twice" in words


def test_within_a_file_a_function_goes_with_the_one_that_it_calls(folder: Path) -> None:
    save(v1_backend.with_functions(v1=with_helper("load_key", "thread_idx % THREAD_GROUP_SIZE")))
    change(folder / "v1.py", "return 2 * a", "return MINE * a")
    assert saved("v1") == {}


def test_a_function_that_a_later_file_defines_again_is_not_called_the_readers(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    save(v1_backend.with_functions(v1=[BY_ELEMENT, answer("warp_max")]))
    for kernel, theirs in {"v1": "load_key, warp_max", "v2": "warp_max"}.items():
        capsys.readouterr()
        saved(kernel)
        load(folder, kernel)
        assert capsys.readouterr().out.count(f"v1.py: Yours: {theirs}. Ours: ") == 2


def test_what_a_notebook_began_with_never_replaces_what_another_saved_since(folder: Path) -> None:
    save(MINE)
    mine = v1_backend.with_functions(**saved("v1"))
    save(v1_backend.with_functions(v1=[changed_key()]))
    save(mine.with_functions(v1=[answer("qk_dot")]))
    assert "e + first]" in (folder / "v1.py").read_text(encoding="utf-8")
    step = WORKED_EXAMPLE.paged("vllm")  # the file has changed since, and mine still runs
    assert torch.equal(mine.prepare(step).run(), v1_backend.prepare(step).run())
    (folder / "v1.py").unlink()
    save(mine)
    assert len(saved("v1")["v1"]) == 1


def changed_key() -> Callable:
    blank = all_blanks()["load_key"]
    return function_of(blank, blank.source.replace("first + e]", "e + first]"))


def test_a_save_waits_for_that_of_another_notebook(folder: Path) -> None:
    save(v1_backend.with_functions(v1=[answer("qk_dot")]))
    theirs = (folder / "v1.py").read_text(encoding="utf-8")
    (folder / "v1.py").unlink()
    with ThreadPoolExecutor(1) as pool:
        with locked(folder / "v1.py"):
            ours = pool.submit(save, MINE)
            time.sleep(0.2)
            assert not ours.done()
            (folder / "v1.py").write_text(theirs, encoding="utf-8")
        ours.result()
    assert len(saved("v1")["v1"]) == 2


def save_one_by_one(folder: Path, names: list[str]) -> None:
    os.environ[PLACE] = str(folder)
    for name in names:
        save(v1_backend.with_functions(v1=[answer(name)]))


@pytest.mark.rest("test_a_save_waits_for_that_of_another_notebook")
def test_notebooks_may_save_at_the_same_moment(folder: Path) -> None:
    names = sorted(blanks_in("v1"))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(save_one_by_one, [folder] * 2, [names[::2], names[1::2]]))
    assert names_of_reader((folder / "v1.py").read_text(encoding="utf-8")) == {*names}
    assert files_in(folder) == ["v1.py"]


def test_functions_by_element_and_by_vec_live_side_by_side(folder: Path) -> None:
    save(v1_vector_backend.with_functions(v1_vector=[BY_VEC]))
    assert saved("v1") == {}
    save(MINE)  # the earlier notebook later
    assert {file: one.text for file, (one,) in saved("v2").items()} == {
        "v1": all_blanks()["load_key"].source,
        "v1_vector": all_blanks()["load_key_by_vec"].source,
    }


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
    save(v1_vector_backend.with_functions(v1=[BY_ELEMENT, answer("warp_max")], v1_vector=[BY_VEC]))
    for kernel, count in {"v1": "2 of 13", "v1_vector": "2 of 13", "v2": "2 of 18"}.items():
        capsys.readouterr()
        backend = BACKENDS[kernel].with_functions(**saved(kernel))
        words = f"{count} functions of {kernel} are yours"
        assert f"{words}.\n" in capsys.readouterr().out
        assert yours(backend) == yours(load(folder, kernel)) == words
    assert yours(MINE.with_functions(v1=[v1_backend.namespace().load_key])).startswith("0 of 13")


UNFINISHED = function_of(all_blanks()["qk_dot"], all_blanks()["qk_dot"].stub)


def test_what_is_of_no_use_in_a_file_is_named_and_not_saved(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    bounds, helper = with_helper("bounds_of_partition", "(PARTITION_SIZE // BLOCK_SIZE)")
    save(v2_backend.with_functions(v1=[helper, UNFINISHED, BY_ELEMENT]))
    said = capsys.readouterr().out
    assert "v1.py has no twice, and none of yours calls it: not saved." in said
    assert "qk_dot isn't finished: not saved." in said
    save(v2_backend.with_functions(v2=[bounds]))
    assert "bounds_of_partition uses twice: the kernel's files have" in capsys.readouterr().out
    assert files_in(folder) == ["v1.py"]
    assert names_of_reader((folder / "v1.py").read_text(encoding="utf-8")) == {"load_key"}


def test_plain_functions_of_sizes_are_saved_and_come_back(
    folder: Path, written: Path, capsys: pytest.CaptureFixture
) -> None:
    blank = all_blanks()["group_sizes"]
    head, body = blank.source.split("\n", 1)
    mine = function_of(blank, f"{head}\n    import math as numbers\n\n{body}    numbers.ceil(0)\n")
    save(v1_backend, mine)
    assert "sizes.py is written. Yours: group_sizes. Ours: row_sizes." in capsys.readouterr().out
    assert saved("v1") == {}  # no function of the kernel
    write_kernel(written, v1_backend)
    kernel = import_module("kernel_written")
    assert not is_ours(kernel.group_sizes)
    assert is_ours(kernel.row_sizes)
    assert kernel.group_sizes(32, 8, 2) == blank.craft.saved_of(blank)(32, 8, 2) == (4, 2, 4)
    row_sizes = all_blanks()["row_sizes"]
    assert row_sizes.craft.saved_of(row_sizes) is None


def test_what_an_earlier_visit_saved_is_found_for_an_unwritten_blank(folder: Path) -> None:
    blanks = all_blanks()
    assert saved_in(blanks["load_key"]) is None
    save(MINE)
    found = saved_in(blanks["load_key"], HEAD_SIZE=96, DTYPE=torch.bfloat16)
    assert not is_ours(found)
    assert sources.source_of(found).text == blanks["load_key"].source
    assert saved_in(blanks["load_key_by_vec"]) is None
    save(MINE.with_functions(v1=[found, answer("qk_dot")]))
    assert sources.source_of(found).text == blanks["load_key"].source


def test_a_blank_goes_on_with_what_was_saved(folder: Path, capsys: pytest.CaptureFixture) -> None:
    blank = all_blanks()["load_key"]
    save(MINE)
    capsys.readouterr()
    for text, says in (
        (blank.stub, "load_key, as you saved it: right in all"),
        (blank.wrong[0].made_in(blank.source), "The notebook goes on with the one that you saved."),
    ):
        goes_on = attempt("load_key", function_of(blank, text))
        assert sources.source_of(goes_on).text == blank.source
        assert says in capsys.readouterr().out


def test_a_place_that_cannot_be_written_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder.with_suffix(".txt").touch()
    monkeypatch.setenv(PLACE, str(folder.with_suffix(".txt") / "my_kernel"))
    save(MINE)
    assert re.search(
        r"v1\.py can't be written: .*\. load_key: not saved\.", capsys.readouterr().out
    )


def test_of_two_functions_of_one_name_in_a_file_the_last_counts_and_none_is_lost(
    folder: Path,
) -> None:
    save(MINE)
    path = folder / "v1.py"
    first = all_blanks()["load_key"].source.replace("first + e]", "e + first]")
    both = change(path, "# Of q and K\n", f"{first}\n\n# Of q and K\n")
    assert "first + e]" in saved("v1")["v1"][0].text
    save(v1_backend.with_functions(v1=[answer("qk_dot")]))
    assert (folder / "v1_1.py").read_text(encoding="utf-8") == both
    assert path.read_text(encoding="utf-8").count("def load_key(") == 1


def test_lines_may_end_as_on_windows_and_comments_speak_any_language(folder: Path) -> None:
    save(MINE)
    path = folder / "v1.py"
    text = change(path, "# Of q and K\n", "# q und K, größer als 日本\n")
    path.write_bytes(text.replace("\n", "\r\n").encode())
    save(v1_backend.with_functions(v1=[answer("qk_dot")]))
    assert "größer als 日本" in path.read_text(encoding="utf-8")
    assert files_in(folder) == ["v1.py"]
    assert len(saved("v1")["v1"]) == 2


@pytest.mark.parametrize("mark", ["\ufeff", "# a form feed \x0c and \u2028 more\n"])
def test_a_mark_of_an_editor_moves_no_line(folder: Path, mark: str) -> None:
    save(MINE)
    path = folder / "v1.py"
    path.write_text(mark + path.read_text(encoding="utf-8"), encoding="utf-8")
    (before,) = saved("v1")["v1"]
    assert before.text.startswith("@cuda.jit(device=True)\ndef load_key(")
    save(v1_backend.with_functions(v1=[answer("qk_dot")]))
    assert len(saved("v1")["v1"]) == 2
    assert files_in(folder) == ["v1.py"]


def test_what_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture) -> None:
    (folder / "v1.py").mkdir(parents=True)
    assert saved("v1") == {}
    assert "my_kernel/v1.py can't be read: " in capsys.readouterr().out
    with pytest.raises(MyKernelError, match=r"v1\.py can't be read: "):
        load(folder, "v1")


def test_one_file_of_the_folder_is_no_file_of_1_0(folder: Path) -> None:
    save(MINE)
    with pytest.raises(MyKernelError, match=r"v1\.py is one file; all of .*my_kernel make"):
        load(folder / "v1.py", "v1")


INCOMPLETE: dict[str, tuple[str, str]] = {
    "v1.py isn't complete: it lacks HEAD_SIZE.": ("\nHEAD_SIZE = 32", "\nHEAD_SIZE: int = 32"),
    "v1.py isn't complete: it lacks qk_dot(q_vecs, k_vecs).": ("def qk_dot", "def dot"),
    "it lacks load_key(k_vecs, k_block, physical_": ("k_vecs, k_block, phys", "k_vecs, phys"),
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


def test_a_folder_without_the_kernel_is_refused(folder: Path) -> None:
    with pytest.raises(MyKernelError, match=r"has no v1.py or v1_vector.py or v2.py"):
        load(folder, "v2")


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
    mine = v2_backend.with_functions(v1=[BY_ELEMENT, answer("qk_dot")])
    for head_size in (32, 64, 96):
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


def test_a_kernel_that_another_notebook_writes_again_keeps_its_lines_here(written: Path) -> None:
    write_kernel(written, MINE)
    kernel = import_module("kernel_written")
    written.write_text(
        "# all lines moved\n" + written.read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert sources.source_of(kernel.load_key).text == all_blanks()["load_key"].source


def test_a_name_that_is_no_constant_is_refused(written: Path) -> None:
    with pytest.raises(KernelFileError, match=r"HEADSIZE: no constant of v1.py"):
        write_kernel(written, v1_backend, HEADSIZE=64)
    assert not written.exists()


def test_a_kernel_of_whole_files_is_not_written_as_ours(tmp_path: Path, folder: Path) -> None:
    save(MINE)
    with pytest.raises(MyKernelError, match="the backend has whole files, as `load` gives"):
        write_kernel(tmp_path / "kernel_v1.py", load(folder, "v1"))


@pytest.mark.parametrize("call", [saved, lambda kernel: load(Path("my_kernel"), kernel)])
def test_a_kernel_that_there_is_not_is_named(call: Callable) -> None:
    with pytest.raises(ValueError, match="kernel is 'cuda_v1'; it must be one of naive, v1,"):
        call("cuda_v1")


def test_another_notebook_that_writes_the_file_does_not_change_what_is_imported(
    written: Path,
) -> None:
    """Between the cell that writes it and the cell that imports it, with other sizes."""
    write_kernel(written, MINE, HEAD_SIZE=64)
    written.write_text("\n\n" + sources.text_of("v1"), encoding="utf-8")
    kernel = import_module("kernel_written")
    assert kernel.HEAD_SIZE == 64
    assert sources.source_of(kernel.load_key).text == all_blanks()["load_key"].source
