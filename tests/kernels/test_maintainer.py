"""What a maintainer may do to a kernel's file: rename a local, comment it, add in another order.

The changed file takes the place of ours as a reader's does, so this also tries that.
"""

import ast
from pathlib import Path

import pytest
import torch
from numba import cuda

from pa_tutorial.checks import check
from pa_tutorial.checks.cases import CASES
from pa_tutorial.kernels.cuda_backends import CudaBackend, v1_backend, v1_vector_backend, v2_backend
from pa_tutorial.kernels.intermediates import NAMES, REDUCED_NAMES
from pa_tutorial.kernels.sources import Source, functions_of, text_of, tree_of
from pa_tutorial.kernels.v1 import (
    HEAD_SIZE,
    NUM_ROWS_PER_ITER,
    NUM_ROWS_PER_THREAD,
    NUM_V_VECS_PER_ROW,
    V_VEC_SIZE,
    WARP_SIZE,
    to_float,
)

BACKENDS = {"v1": v1_backend, "v1_vector": v1_vector_backend, "v2": v2_backend}
STEP = CASES["decode/worked_example"].paged("vllm")
SIZES = {"v2": {"partition_size": 8}}
# Of a kernel, pictures and checks look at the arguments, and at these variables at its marks.
LOOKED_AT = {*NAMES, *REDUCED_NAMES}
FUNCTIONS = [(file, name) for file in ("v1", "v2") for name in functions_of(tree_of(file))]


def with_file(file: str, text: str, folder: Path) -> CudaBackend:
    """The backend of a file, with this text in its place."""
    path = folder / f"{file}.py"
    path.write_text(text, encoding="utf-8")
    return BACKENDS[file].with_functions(**{file: [Source(text, str(path), 1)]})


def require_the_same(backend: CudaBackend) -> None:
    """The bits of ours, in every quantity."""
    ours, sizes = BACKENDS[backend.kernel], SIZES.get(backend.kernel, {})
    found, expected = (each.prepare(STEP, **sizes).probe() for each in (backend, ours))
    for name, right in expected.items():
        torch.testing.assert_close(found[name], right, rtol=0, atol=0, equal_nan=True)


def local_names(file: str, function: str) -> list[str]:
    (node,) = (n for n in tree_of(file).body if getattr(n, "name", "") == function)
    nodes = list(ast.walk(node))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    arguments = {n.arg for n in nodes if isinstance(n, ast.arg)}
    is_kernel = not any("device" in ast.unparse(one) for one in node.decorator_list)
    return sorted(stored - arguments - LOOKED_AT if is_kernel else stored | arguments)


def renamed(file: str, function: str, name: str) -> str:
    """The file's text with another name for a local of a function."""
    lines = text_of(file).splitlines(keepends=True)
    (node,) = (n for n in tree_of(file).body if getattr(n, "name", "") == function)
    places = set()
    for n in ast.walk(node):
        if (isinstance(n, ast.Name) and n.id == name) or (isinstance(n, ast.arg) and n.arg == name):
            places.add((n.lineno - 1, n.col_offset))
    for row, column in sorted(places, reverse=True):
        line = lines[row]
        lines[row] = f"{line[:column]}renamed_{line[column:]}"
    return "".join(lines)


@pytest.mark.rest("two functions", keep=["v1-load_key", "v2-merged_output"])
@pytest.mark.parametrize(("file", "function"), FUNCTIONS, ids=map("-".join, FUNCTIONS))
def test_a_local_may_have_another_name(file: str, function: str, tmp_path: Path) -> None:
    for name in local_names(file, function):
        text = renamed(file, function, name)
        assert text.count(f"renamed_{name}") >= 1
        require_the_same(with_file(file, text, tmp_path))


@pytest.mark.parametrize("file", BACKENDS)
def test_a_comment_may_stand_above_every_line(file: str, tmp_path: Path) -> None:
    lines = text_of(file).splitlines(keepends=True)
    end = tree_of(file).body[0].end_lineno  # of the docstring
    commented = [f"{indent(line)}# why\n{line}" for line in lines[end:]]
    require_the_same(with_file(file, "".join(lines[:end] + commented), tmp_path))


def indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())].replace("\n", "")


@cuda.jit(device=True)
def add_values(accs, logits, v_block, first_token, num_tokens, thread_idx):
    """From the last token of a vec to the first, and straight into the sum."""
    lane = thread_idx % WARP_SIZE
    offset = lane % NUM_V_VECS_PER_ROW * V_VEC_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
        for j in range(V_VEC_SIZE - 1, -1, -1):
            token_idx = first_token + offset + j
            if row_idx < HEAD_SIZE and token_idx < num_tokens:
                accs[i] += logits[token_idx] * to_float(v_block[row_idx, offset + j])


def test_the_sums_over_v_may_be_added_up_in_another_order() -> None:
    """Other bits, and every check passes as it is."""
    mine = v1_backend.with_functions(v1=[add_values])
    assert "accs" not in mine.same_bits(v1_backend, STEP)
    check("cuda_v1", mine, short=True)
