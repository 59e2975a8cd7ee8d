"""Every notebook runs in a clean kernel, without a warning, and prints what is committed."""

import base64

import nbformat
import pytest
from nbformat import NotebookNode

from tests.run_notebooks import METADATA, NOTEBOOKS, execute, keep
from tests.same_output import Piece, require_same

MARKS = {
    "07_cuda_in_the_simulator": [pytest.mark.macos],
    "09_query_and_key": [pytest.mark.macos],
    "14_triton": [pytest.mark.triton],
}
each = pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, ()))
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    ],
)
MAX_CELL_LINES = 15
MAX_KERNEL_LINES = 40  # of a cell with a kernel, or with its constants
KERNEL_MARKS = "@cuda.jit", "@triton.jit", "njit(", "@unrolled", "\nTHREAD_GROUP_SIZE = "


def outputs(cell: NotebookNode) -> list[Piece]:
    """What a cell shows: the kind of each output, and its text or picture."""
    shown: list[Piece] = []
    for output in cell.get("outputs", []):
        data = {"text": output.get("text"), **output.get("data", {})}
        for kind, value in sorted(data.items()):
            shown += [kind, base64.b64decode(value) if kind == "image/png" else str(value)]
    return shown


@each
def test_a_notebook_runs_and_prints_what_is_committed(path, record_property) -> None:
    committed = nbformat.read(path, as_version=4)
    fresh = execute(path)
    for cell in fresh.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
    for old, new in zip(committed.cells, keep(fresh).cells, strict=True):
        place = f"{path.stem}; run `make refresh`. The cell:\n{new.source}"
        require_same(outputs(new), outputs(old), place, record_property)


@each
def test_a_committed_notebook_has_no_traces_of_a_machine_and_short_cells(path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    for cell in notebook.cells:
        if cell.cell_type == "code" and "exercise" not in cell.metadata:
            of_kernel = any(mark in cell.source for mark in KERNEL_MARKS)
            most = MAX_KERNEL_LINES if of_kernel else MAX_CELL_LINES
            assert len(cell.source.splitlines()) <= most, cell.source
