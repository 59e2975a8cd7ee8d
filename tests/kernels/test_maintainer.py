"""What a maintainer may do to a kernel's file: rename locals, comment it, add in another order.

The changed file takes the place of ours as a reader's does, so this also tries that.
"""

import ast
from pathlib import Path

import pytest
import torch
from numba import cuda

from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import bounds_of, compare
from pa_tutorial.kernels.cuda_backends import v1_backend, v1_vector_backend, v2_backend
from pa_tutorial.kernels.intermediates import NAMES, REDUCED_NAMES
from pa_tutorial.kernels.sources import Source, text_of, tree_of
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
CASE = CASES["decode/worked_example"]
STEP = CASE.paged("vllm")
# Of a kernel, pictures and checks look at the arguments, and at these variables at its marks.
LOOKED_AT = {*NAMES, *REDUCED_NAMES}


def local_names(function: ast.FunctionDef) -> list[ast.Name | ast.arg]:
    """Every place of a local that may have another name."""
    nodes = list(ast.walk(function))
    names, arguments = ([n for n in nodes if isinstance(n, kind)] for kind in (ast.Name, ast.arg))
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    given = {node.arg for node in arguments}
    is_device = any("device" in ast.unparse(one) for one in function.decorator_list)
    local = stored | given if is_device else stored - given - LOOKED_AT
    places = [node for node in names if node.id in local]
    return places + [node for node in arguments if node.arg in local]


@pytest.mark.parametrize("file", BACKENDS)
def test_locals_may_have_other_names_and_a_comment_may_stand_above_every_line(
    file: str, tmp_path: Path
) -> None:
    """The bits stay the same, in every quantity."""
    lines, tree = text_of(file).splitlines(), tree_of(file)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    places = {(n.lineno - 1, n.col_offset) for one in functions for n in local_names(one)}
    assert places
    for row, column in sorted(places, reverse=True):
        lines[row] = f"{lines[row][:column]}renamed_{lines[row][column:]}"
    end = tree.body[0].end_lineno  # of the docstring
    for row in range(len(lines) - 1, end, -1):
        indent = len(lines[row]) - len(lines[row].lstrip())
        lines.insert(row, f"{' ' * indent}# why")
    path, text = tmp_path / f"{file}.py", "\n".join(lines)
    path.write_text(text, encoding="utf-8")
    ours, sizes = BACKENDS[file], {"partition_size": 8} if file == "v2" else {}
    theirs = ours.with_functions(**{file: [Source(text, str(path), 1)]})
    found, expected = (each.prepare(STEP, **sizes).probe() for each in (theirs, ours))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


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
    """Other bits, within the bounds of the check."""
    mine = v1_backend.with_functions(v1=[add_values])
    assert "accs" not in mine.same_bits(v1_backend, STEP)
    found = mine.prepare(STEP).probe()
    for one in compare(found, {"the oracle": CASE.expected()}, bounds_of(CASE.id)):
        assert one.passed, one
