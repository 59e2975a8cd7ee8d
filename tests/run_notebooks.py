"""Run a notebook in a clean kernel, and keep what is committed of it: `make refresh`.

Cells tagged `live` show this machine (names, times), so their outputs are not kept. The microscope
leaves a picture, because a widget shows nothing where no kernel runs.
"""

import base64
import os
from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from pa_tutorial.checks.progress import HIDDEN
from pa_tutorial.coursework.notebooks import METADATA
from pa_tutorial.exercises import named
from pa_tutorial.exercises.my_kernel import PLACE
from pa_tutorial.kernels.cpu.kernel import COMPILING
from pa_tutorial.kernels.cuda_launch import SIMULATED
from pa_tutorial.viz.style import PNG, SVG
from simt.microscope.page import STATIC
from tests.same_output import Piece
from tests.warm_kernels import start_kernel

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
CELL_TIMEOUT = 300  # seconds
NOT_THERE = "nowhere/my_kernel"  # a reader's own is left alone


def execute(path: Path) -> NotebookNode:
    """The notebook with fresh outputs. Raises CellExecutionError if a cell fails."""
    return run(nbformat.read(path, as_version=4), path.parent)


def filled_twice(path: Path, my_kernel: Path) -> tuple[NotebookNode, NotebookNode]:
    """The notebook with the answers in its blanks, run and run again in the same kernel.

    my_kernel  the reader's folder; they run beside it
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        fill_in(cell)
    again = deepcopy(notebook.cells)
    for cell in again:
        cell.id += "-again"
    count = len(notebook.cells)
    notebook.cells += again
    cells = run(notebook, my_kernel.parent, str(my_kernel)).cells
    return nbformat.v4.new_notebook(cells=cells[:count]), nbformat.v4.new_notebook(
        cells=cells[count:]
    )


def fill_in(cell: NotebookNode) -> None:
    """Put the answer in the place of a stub; other cells stay."""
    name = cell.metadata.get("blank", cell.metadata.get("exercise"))
    if name is None or cell.metadata["part"] != "stub":
        return
    told = named(name)
    attempt = cell.source[len(told.stub.strip()) :]  # below the stub of a blank
    cell.source = told.source.strip() + attempt


def run(notebook: NotebookNode, folder: Path, my_kernel: str = NOT_THERE) -> NotebookNode:
    env = {**os.environ, STATIC: "1", HIDDEN: "1", PLACE: my_kernel}
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        km=start_kernel(env, str(folder)),
        record_timing=False,
        coalesce_streams=True,  # how a print is cut into messages is chance
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(cleanup_kc=True)  # and end the kernel
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if lasts(output)]
    return notebook


def lasts(output: NotebookNode) -> bool:
    """Takes out of a text what is said only once: that a kernel is compiled, and where it runs.
    False if nothing is left."""
    if "text" in output:
        output.text = output.text.replace(COMPILING, "").replace(f"{SIMULATED}\n", "")
    return output.get("text") != ""


def keep(notebook: NotebookNode) -> NotebookNode:
    """What is committed: nothing that depends on the machine."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        if cell.cell_type == "code" and "live" in cell.metadata.get("tags", []):
            cell.outputs = []
    return notebook


def outputs(cell: NotebookNode, with_png: bool) -> list[Piece]:
    """What a cell shows: the kind of each output, and its text or picture."""
    shown: list[Piece] = []
    for output in cell.get("outputs", []):
        data = {"text": output.get("text"), **output.get("data", {})}
        if SVG in data and not with_png:
            data.pop(PNG, None)
        for kind, value in sorted(data.items()):
            shown += [kind, base64.b64decode(value) if kind == PNG else str(value)]
    return shown
