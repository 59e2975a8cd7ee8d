"""Numba accepts every kernel that a notebook runs in the simulator."""

import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch

import simt
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.compiled.report import signature_of
from pa_tutorial.kernels.cuda_backends import arguments_of, partials_of
from pa_tutorial.kernels.template import made
from pa_tutorial.viz.kernel_runs import REFERENCE
from simt import simulate

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
pytestmark = [
    pytest.mark.needs("numba-cuda"),
    pytest.mark.rest("test_paged_kernel_compiles.py; test_notebooks.py runs them in the simulator"),
]
Launched = list[tuple[Callable, tuple]]
SIZES = {"HEAD_SIZE": 128, "BLOCK_SIZE": 16}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Launched]:
    """(kernel, arguments) of every launch from here on."""
    seen: Launched = []
    original = simt.launch

    def launch(kernel: Callable, grid: object, block: object, *args: object, **options: object):
        seen.append((kernel, args))
        return original(kernel, grid, block, *args, **options)

    for module in (simt, sys.modules["simt.brackets"]):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.chdir(tmp_path)  # kernel files that a notebook writes
    monkeypatch.syspath_prepend(tmp_path)
    with simulate():  # undoes what a notebook switches on
        yield seen


def compile_all(launched: Launched) -> set[str]:
    """Each kind of launch once, for one architecture after the other; the names of the kernels."""
    kinds = {
        (kernel.py_func, signature_of(kernel, args)): (kernel, args) for kernel, args in launched
    }
    for (kernel, args), capability in zip(
        kinds.values(), cycle(((9, 0), (8, 0), (7, 5))), strict=False
    ):
        assert ".entry" in simt.compile_ptx(kernel, *args, compute_capability=capability)
    return {kernel.__name__ for kernel, _ in kinds}


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


# Notebooks 08 and 11 to 14 build up the kernels that are files.
IN_NOTEBOOKS = {
    "07_threads": "scale_each who_am_i copy_elements reverse first_half",
    "09_warps": "copy_tokens gather_tokens load_words swap scores_by_group",
    "10_query_and_key": "scores_of_head",
}


@pytest.mark.parametrize("notebook", IN_NOTEBOOKS)
def test_kernels_of_a_notebook(
    notebook: str, launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # notebook 10 writes a file and imports it
    monkeypatch.syspath_prepend(tmp_path)
    run_cells(notebook)
    assert compile_all(launched) >= set(IN_NOTEBOOKS[notebook].split())


def launch_v2(kernel: ModuleType, step: DecodeStep) -> None:
    (out, *inputs), partials = arguments_of(step), partials_of(step, 2)
    kernel.launch_partitions(*partials, *inputs)
    kernel.launch_reduce(out, *partials, step.seq_lens)


LAUNCHERS = {
    "naive": lambda kernel, step: kernel.launch_naive(*arguments_of(step)),
    "v1": lambda kernel, step: kernel.launch_v1(*arguments_of(step)),
    "v1_vector": lambda kernel, step: kernel.launch_v1(*arguments_of(step)),
    "v2": launch_v2,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("file", LAUNCHERS)
def test_kernels_of_a_file(file: str, dtype: torch.dtype, launched: Launched) -> None:
    """As its own launchers launch them, which is what a notebook shows."""
    step, launch = replace(REFERENCE, dtype=dtype, seq_lens=(20,)).paged("vllm"), LAUNCHERS[file]
    in_parts = {"PARTITION_SIZE": 16} if file == "v2" else {}
    launch(made(file, HEAD_SIZE=128, BLOCK_SIZE=16, DTYPE=dtype, **in_parts), step)
    compile_all(launched)
