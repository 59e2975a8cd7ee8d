"""Every notebook runs in a clean kernel, without a warning, and prints what is committed."""

import ast
import base64
import re

import nbformat
import pytest
from nbformat import NotebookNode

from tests.run_notebooks import METADATA, NOTEBOOKS, execute, keep
from tests.same_output import Piece, require_same

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
MARKS = {
    "07_cuda_in_the_simulator": [pytest.mark.macos],
    "09_query_and_key": [pytest.mark.macos],
    "14_triton": [pytest.mark.triton],
}
each = pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, ())) for path in PATHS]
)
MAX_CELL_LINES = 15
MAX_KERNEL_LINES = 40  # of a cell with a kernel, or with its constants
KERNEL_MARKS = "@cuda.jit", "@triton.jit", "njit(", "@unrolled", "\nTHREAD_GROUP_SIZE = "


def outputs(cell: NotebookNode) -> list[Piece]:
    """What a cell shows: the kind of each, and the text or the picture."""
    shown: list[Piece] = []
    for output in cell.get("outputs", []):
        data = {"text": output.get("text"), **output.get("data", {})}
        for kind, value in sorted(data.items()):
            shown += [kind, base64.b64decode(value) if kind == "image/png" else str(value)]
    return shown


@each
def test_notebook_runs_and_prints_what_is_committed(path, record_property) -> None:
    committed = nbformat.read(path, as_version=4)
    fresh = execute(path)
    for cell in fresh.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
    for old, new in zip(committed.cells, keep(fresh).cells, strict=True):
        place = f"{path.stem}, which `make refresh` runs, in this cell:\n{new.source}"
        require_same(outputs(new), outputs(old), place, record_property)


@each
def test_committed_notebook_is_clean(path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        of_kernel = any(mark in cell.source for mark in KERNEL_MARKS)
        most = MAX_KERNEL_LINES if of_kernel else MAX_CELL_LINES
        assert len(cell.source.splitlines()) <= most or "exercise" in cell.metadata, cell.source
        live = "live" in cell.metadata.get("tags", [])
        assert bool(cell.execution_count), "a cell was never run"
        assert not (live and cell.outputs), "live output is not committed"


def test_a_number_is_left_out() -> None:
    assert [int(path.stem[:2]) for path in PATHS] == list(range(max(len(PATHS), 1)))


def functions_of(path) -> dict[str, str]:
    """Name -> text of the kernels and device functions in a notebook's cells.

    Without uint32(...) around a thread's index: that is new in all functions of notebook 11.
    """
    found: dict[str, str] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and "exercise" not in cell.metadata:
            for node in ast.parse(cell.source).body:
                if isinstance(node, ast.FunctionDef) and node.decorator_list:
                    lines = cell.source.splitlines()[node.lineno - 1 : node.end_lineno]
                    text = re.sub(r"uint32\((\S+)\)", r"\1", "\n".join(lines))
                    found.setdefault(node.name, text)
    return found


def test_a_kernel_that_a_notebook_repeats_is_unchanged_or_says_what_is_new() -> None:
    latest: dict[str, str] = {}
    for path in PATHS[9:13]:
        here = functions_of(path)
        for name, text in here.items():
            if name in latest and "# NEW" not in text:
                plain = re.sub(r"  # NEW.*", "", latest[name])
                assert text == plain, f"{path.stem}: {name} is not that of the notebook before"
        latest |= here
    assert {"load_query", "fill_logits", "add_warps", "reduce_partitions"} <= latest.keys()
