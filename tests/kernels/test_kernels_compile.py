"""Numba accepts every kernel that a notebook runs in the simulator."""

import linecache
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import nbformat
import pytest

import simt
from pa_tutorial.kernels.compiled.report import signature_of
from simt import simulate

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# Notebooks 08 and 11 to 14 build up the kernels that are files.
IN_NOTEBOOKS = {
    "07_threads": "scale_each who_am_i copy_elements reverse first_half",
    "09_warps": "copy_tokens gather_tokens load_words swap scores_by_group",
    "10_query_and_key": "scores_of_head",
}


def run_cells(name: str) -> None:
    """A notebook; what is drawn beside a verdict isn't shown."""
    names: dict[str, object] = {"display": id}
    for number, cell in enumerate(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells):
        if cell.cell_type != "code" or "live" in cell.metadata.get("tags", []):
            continue
        file = f"<cell {number} of {name}>"
        lines = cell.source.splitlines(keepends=True)
        linecache.cache[file] = (len(cell.source), None, lines, file)
        exec(compile(cell.source, file, "exec"), names)


@pytest.mark.needs("numba-cuda")
@pytest.mark.rest("test_paged_kernel_compiles.py; test_notebooks.py runs them in the simulator")
@pytest.mark.parametrize("notebook", IN_NOTEBOOKS)
def test_kernels_of_a_notebook(
    notebook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of launch once, for one architecture after the other."""
    kinds, original = {}, simt.launch

    def launch(kernel: Callable, grid: object, block: object, *args: object, **options: object):
        kinds[kernel.py_func, signature_of(kernel, args)] = kernel, args
        return original(kernel, grid, block, *args, **options)

    for module in (simt, sys.modules["simt.brackets"]):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.chdir(tmp_path)  # notebook 10 writes a file and imports it
    monkeypatch.syspath_prepend(tmp_path)
    with simulate():  # undoes what a notebook switches on
        run_cells(notebook)
    for (kernel, args), capability in zip(
        kinds.values(), cycle(((9, 0), (8, 0), (7, 5))), strict=False
    ):
        assert ".entry" in simt.compile_ptx(kernel, *args, compute_capability=capability)
    assert {kernel.__name__ for kernel, _ in kinds.values()} >= {*IN_NOTEBOOKS[notebook].split()}
