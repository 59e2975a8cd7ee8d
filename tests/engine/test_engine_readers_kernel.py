"""The engine runs a reader's kernel as it runs ours: it is handed a backend."""

from numba import cuda

from pa_tutorial.attention.tiny_lm import load
from pa_tutorial.engine.llm import LLM
from pa_tutorial.engine.request import SamplingParams
from pa_tutorial.engine.tokenizer import ByteTokenizer
from pa_tutorial.kernels.cuda_backends import CudaBackend, v1_backend
from pa_tutorial.kernels.v1 import (
    HEAD_SIZE,
    NUM_ROWS_PER_ITER,
    NUM_ROWS_PER_THREAD,
    NUM_V_VECS_PER_ROW,
    WARP_SIZE,
    from_float,
)
from tests.kernels.test_maintainer import add_values


@cuda.jit(device=True)
def write_rows(out, accs, thread_idx):
    """Wrong: the sign of each element."""
    lane = thread_idx % WARP_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
        if row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0:
            out[row_idx] = from_float(-accs[i])


def text_of(backend: CudaBackend) -> str:
    llm = LLM(load(), ByteTokenizer(), backend=backend)
    (request,) = llm.generate(["The class"], SamplingParams(6), progress=False)
    return request.text


def test_the_text_is_that_of_the_kernel_with_the_readers_functions() -> None:
    ours = text_of(v1_backend)
    assert text_of(v1_backend.with_functions(v1=[add_values])) == ours
    assert text_of(v1_backend.with_functions(v1=[write_rows])) != ours
