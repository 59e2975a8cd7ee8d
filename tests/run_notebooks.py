"""Run a notebook in a clean kernel, and keep what is committed of it: `make refresh`.

Cells tagged `live` show this machine (names, times), so their outputs are not kept. The microscope
leaves a picture, because a widget shows nothing where no kernel runs.
"""

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from pa_tutorial.checks.progress import HIDDEN
from pa_tutorial.exercises.my_kernel import PLACE
from pa_tutorial.kernels.cpu.kernel import COMPILING
from simt.microscope.page import STATIC
from tests.warm_kernels import start_kernel

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
CELL_TIMEOUT = 300  # seconds
NOT_THERE = "nowhere/my_kernel"  # a reader's own is left alone

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(path: Path) -> NotebookNode:
    """The notebook with fresh outputs. Raises CellExecutionError if a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    env = {**os.environ, STATIC: "1", HIDDEN: "1", PLACE: NOT_THERE}
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        km=start_kernel(env, str(path.parent)),
        record_timing=False,
        coalesce_streams=True,  # how a print is cut into messages is chance
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(cleanup_kc=True)  # and end the kernel
    for cell in notebook.cells:  # whether a kernel has to be compiled depends on the machine
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("text", "-").replace(COMPILING, "")]
    return notebook


def keep(notebook: NotebookNode) -> NotebookNode:
    """What is committed: nothing that depends on the machine."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        if cell.cell_type == "code" and "live" in cell.metadata.get("tags", []):
            cell.outputs = []
    return notebook
