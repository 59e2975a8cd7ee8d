"""What a blank is tried on: its function in the kernel's file, on small decode steps.

The simplest step comes first, so that what is wrong everywhere is told about it.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from types import FrameType, ModuleType

import numpy as np
import torch
from numba import cuda
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import bounds_of, compare
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises import sizes
from pa_tutorial.exercises.ours import BACKENDS, is_ours, is_unfinished
from pa_tutorial.exercises.random_inputs import reseeded, seeded_torch
from pa_tutorial.kernels.cuda_launch import CudaLaunch, PagedLaunch, PartitionedLaunch, as_stored
from pa_tutorial.kernels.geometry import BLOCK_SIZES, DTYPES, HEAD_SIZES, Geometry
from pa_tutorial.kernels.intermediates import (
    MARKS,
    NAMES,
    REDUCED,
    SCORES_DONE,
    SUM_DONE,
    intermediates,
)
from pa_tutorial.kernels.v1 import NUM_THREADS, NUM_WARPS, WARP_SIZE, warp_max
from pa_tutorial.paging.layouts import VllmLayout, reshape_and_cache
from simt import Report, Trace, global_traffic, launch

MOST_TURNS = 4_000  # of loops in a thread block: an endless one is stopped. Ours take up to 611
PARTITION_SIZE = 32
SHAPES = ("worked_example", "alibi_block_size_8", "gqa", "bfloat16", "strided_q_float16")
EDGES = (
    *("head_size_120_float16", "very_deep_negative_scores", "drifting_scores"),
    *("stale_slots_far_above", "more_vecs_than_groups"),
)
OF_FILE = {
    "naive": (*SHAPES, "one_token", *EDGES, "drifting_over_lanes_and_warps"),
    "v1": (*SHAPES, *EDGES, "shuffled_blocks"),  # more tokens than threads
    "v1_vector": (*SHAPES, *EDGES, "shuffled_blocks"),
    "v2": (
        *("worked_example", "gqa", "bfloat16", "one_full_block", "more_vecs_than_groups"),
        *("very_deep_negative_scores", "drifting_scores", "long_context"),
    ),
}
# Functions of v1 that v2 calls with a range of blocks: there, the range may begin at any block.
OF_A_RANGE = ("fill_logits", "sum_values")
GRADED = ("head_size_96", "block_size_8", "block_size_32")  # other constants than the notebook's
# Another answer may be right, but must not take more transactions for these: they are the subject.
ARRAYS = {"v1_vector": ("q", "k_cache", "v_cache")}


@cuda.jit(device=True)
def block_max(red_smem, value, smallest_mask, thread_idx):
    """Without a broadcast every lane finds the maximum by itself: each must know what warp_max
    found."""
    value = warp_max(value, WARP_SIZE // 2, smallest_mask)
    if thread_idx % WARP_SIZE == 0:
        red_smem[thread_idx // WARP_SIZE] = value
    cuda.syncthreads()
    return warp_max(red_smem[thread_idx % NUM_WARPS], WARP_SIZE // 2, 1)


def launch_of(
    kernel: str, problem: DecodeProblem, *functions: Callable, file: str = ""
) -> CudaLaunch | PartitionedLaunch:
    """A step on a kernel with a reader's functions of one of its files, that of its name or file"""
    backend = BACKENDS[kernel].with_functions(**{file or kernel: functions})
    if kernel != "v2":
        return backend.prepare(problem.paged("vllm"))
    several = max(problem.seq_lens) > PARTITION_SIZE  # partitions, with several blocks each
    size = PARTITION_SIZE if several else problem.block_size
    return backend.prepare(problem.paged("vllm"), partition_size=size)


def kernel_trials(file: str, name: str, draw: int) -> list[Trial]:
    """The cases of a kernel; another draw has other numbers, and further sizes."""
    if name == "write_keys":
        return [slot_trial(draw, *case) for case in SLOT_CASES]
    cases = OF_FILE[file] + (GRADED if draw else ())
    problems = [reseeded(CASES[f"decode/{case}"], draw) for case in cases]
    trials = [kernel_trial(file, problem) for problem in problems]
    if file == "v1" and name in OF_A_RANGE:
        trials.append(kernel_trial("v2", problems[0], file=file))
    if name == "bounds_of_partition":
        pairs = ((11, 0), (16, 0), (17, 1), (25, 1), (100 + draw % 100, 3))
        trials = [*(bounds_trial(*pair) for pair in pairs), *trials]
    if name == "largest_of_partitions":
        trials.append(early_maximum_trial(draw))
    if name == "warp_max":
        trials.append(kernel_trial(file, problems[0], block_max))
    return trials


def kernel_trial(kernel: str, problem: DecodeProblem, *beside: Callable, file: str = "") -> Trial:
    """beside: functions in the place of ours, besides the answer; file: that of the answer."""
    bounds = bounds_of(problem.id)

    def launched(answer: Callable | None) -> CudaLaunch | PartitionedLaunch:
        return launch_of(kernel, problem, *beside, *([answer] if answer else []), file=file)

    def run(answer: Callable | None) -> Mapping[str, Tensor]:
        require_written(answer)
        launch = launched(answer)
        if not answer or not isinstance(launch, PagedLaunch):
            return launch.probe(max_turns=MOST_TURNS)
        is_counted = kernel in ARRAYS and problem.name in SHAPES
        options = {"trace": 0} if is_counted else {}
        report = launch.simulate(watch=MARKS, names=NAMES, max_turns=MOST_TURNS, **options)
        found = intermediates(report, launch.geometry, launch.seq_lens) | {"out": launch.out}
        right = compare(found, {"the oracle": problem.expected()}, bounds)
        require_all_threads_know(report, {c.quantity for c in right if c.passed})
        if is_counted:
            require_few_transactions(report.trace, enough_transactions(kernel, problem))
        return found

    def trace(answer: Callable | None) -> Trace:
        launch = launched(answer)
        first = launch.partitions if kernel == "v2" else launch
        return first.traced(collect=True, max_turns=MOST_TURNS)

    return Trial(
        name=f"{problem.name}, in partitions" if kernel == "v2" else problem.name,
        isolates=problem.isolates,
        meaning=problem.meaning,
        run=run,
        references={"the oracle": problem.expected},
        bounds=bounds,
        axes=problem.axes,
        problem=problem,
        trace=trace,
    )


def require_written(answer: Callable | None) -> None:
    """Raises AnswerError for our own function and for one that isn't finished."""
    if is_ours(answer):
        raise AnswerError("it is our function, not yet yours")
    if answer and is_unfinished(answer):
        raise AnswerError("not written yet: `...` is still in it")


def require_all_threads_know(report: Report, right: set[str]) -> None:
    """Raises AnswerError if a maximum or sum that is right in thread 0 isn't in all threads."""
    marks = {"qk_max": SCORES_DONE, "exp_sum": SUM_DONE}
    for name in marks.keys() & right:
        for snapshot in report.at(marks[name]):
            numbers = snapshot[name]
            others = np.flatnonzero(numbers != numbers[0])
            if len(others):
                raise AnswerError(
                    f"thread {others[0]} has {numbers[others[0]]:.3g} for {name}, and thread 0 has "
                    f"{numbers[0]:.3g}: only some lanes know it, and all must"
                )


def require_few_transactions(trace: Trace, enough: Mapping[str, int]) -> None:
    """Raises AnswerError if an array takes more memory transactions than are enough."""
    for name, most in enough.items():
        found = transactions(trace, name)
        if found > most:
            raise AnswerError(
                f"the answer is right, but thread block 0 takes {found:,} memory transactions for "
                f"{name}; {most:,} are enough: one load per vec"
            )


@lru_cache(maxsize=64)
def enough_transactions(kernel: str, problem: DecodeProblem) -> dict[str, int]:
    """What our functions take in thread block 0 for each array that is counted."""
    trace = launch_of(kernel, problem).traced(checks=())
    return {name: transactions(trace, name) for name in ARRAYS[kernel]}


def transactions(trace: Trace, array: str) -> int:
    return int(global_traffic(trace.only(array=array)).total("transactions"))


# The worked example's comes first.
SIZES = sorted(product(HEAD_SIZES, BLOCK_SIZES, DTYPES), key=lambda one: one[2] != torch.float16)
NUMBERS = {
    "group_sizes": ("THREAD_GROUP_SIZE", "VEC_SIZE", "NUM_VECS_PER_THREAD"),
    "row_sizes": (
        *("V_VEC_SIZE", "NUM_V_VECS_PER_ROW", "NUM_ROWS_PER_ITER"),
        "NUM_ROWS_PER_THREAD",
    ),
}


EMPTY = -1000.0  # what a slot holds that nothing was written to
# slots, KV heads, head size, block size, dtype
SLOT_CASES = (
    ((41, 18), 2, 32, 8, torch.float16),
    ((13, -1, 0, -1), 1, 32, 8, torch.float32),  # padding, and the first slot
    ((5, 30), 4, 64, 8, torch.bfloat16),  # more elements than threads
    ((70, 21, 64), 2, 96, 16, torch.float16),
)


def slot_trial(
    draw: int, slots: tuple[int, ...], num_heads: int, head_size: int, block_size: int,
    dtype: torch.dtype,
) -> Trial:  # fmt: skip
    """Keys written into a pool of 6 blocks; notebook 04's function says what is right."""
    slot_mapping = torch.tensor(slots)
    layout = VllmLayout(6, num_heads, head_size, block_size, dtype)
    key = torch.randn(len(slots), num_heads, head_size, generator=seeded_torch(7, draw)).to(dtype)

    def launched(answer: Callable | None, **options: object) -> tuple[Tensor, Report]:
        sizes = {"HEAD_SIZE": head_size, "BLOCK_SIZE": block_size, "DTYPE": dtype}
        kernel = namespace_of("naive", answer, **sizes).write_keys
        k_cache = layout.empty()[0].fill_(EMPTY)
        arrays = as_stored(k_cache), as_stored(key), slot_mapping
        report = launch(kernel, len(slots), NUM_THREADS, *arrays, max_turns=MOST_TURNS, **options)
        return k_cache.float(), report

    def run(answer: Callable | None) -> Mapping[str, Tensor]:
        require_written(answer)
        k_cache, _ = launched(answer)
        return {"out": k_cache}

    def right() -> Mapping[str, Tensor]:
        k_cache, v_cache = (cache.fill_(EMPTY) for cache in layout.empty())
        reshape_and_cache(key, key, k_cache, v_cache, slot_mapping)
        return {"out": k_cache.float()}

    heads = "1 KV head" if num_heads == 1 else f"{num_heads} KV heads"
    sizes = f"HEAD_SIZE {head_size}, BLOCK_SIZE {block_size}, {str(dtype).removeprefix('torch.')}"
    return Trial(
        name=f"slots {', '.join(map(str, slots))}; {heads}; {sizes}",
        isolates="slots",
        meaning="In which block, piece and slot is element d of a token?",
        run=run,
        references={"reshape_and_cache": right},
        bounds={"out": 0},
        axes=("block", "head", "piece", "slot", "number"),
        trace=lambda answer: launched(answer, trace=0, collect=True)[1].trace,
    )


def size_trials(name: str, draw: int) -> list[Trial]:
    """One case per size of vLLM's list; the geometry of the package says what is right."""
    sizes = SIZES
    if draw:
        sizes = np.random.default_rng(draw).permutation(np.array(SIZES, dtype=object)).tolist()
    return [size_trial(name, *one) for one in sizes]


def size_trial(name: str, head_size: int, block_size: int, dtype: torch.dtype) -> Trial:
    names, geometry = NUMBERS[name], Geometry(head_size, block_size, dtype)
    ours = getattr(sizes, name)
    return number_trial(
        f"HEAD_SIZE {head_size}, BLOCK_SIZE {block_size}, itemsize {dtype.itemsize}",
        names,
        lambda answer: called(answer or ours, head_size, block_size, dtype.itemsize),
        [getattr(geometry, name) for name in names],
    )


def bounds_trial(seq_len: int, partition_idx: int) -> Trial:
    """bounds_of_partition by itself, as Python computes it: partitions of 16 tokens."""
    tokens = range(seq_len)[16 * partition_idx : 16 * (partition_idx + 1)]

    def run(answer: Callable | None) -> tuple[int, ...]:
        kernel = namespace_of("v2", answer, BLOCK_SIZE=8, PARTITION_SIZE=16)
        bounds = kernel.bounds_of_partition.py_func
        num_tokens, blocks = called(bounds, partition_idx, seq_len)
        return num_tokens, *blocks

    return number_trial(
        f"partition {partition_idx} of {seq_len} tokens, PARTITION_SIZE 16, BLOCK_SIZE 8",
        ("num_tokens", "the first block", "the block after the last"),
        run,
        (len(tokens), tokens[0] // 8, tokens[-1] // 8 + 1),
    )


def early_maximum_trial(draw: int) -> Trial:
    """More partitions than threads, and the largest maximum is the first that its thread sees."""
    num_partitions, early = 140, draw % 12
    max_logits = torch.randn(1, 1, num_partitions, generator=seeded_torch(3, draw))
    max_logits[..., early] = 9
    exp_sums = torch.ones_like(max_logits)
    tmp_out = torch.ones(1, 1, num_partitions, 32, dtype=torch.float16)
    seq_lens = torch.tensor([8 * num_partitions], dtype=torch.int32)

    def run(answer: Callable | None) -> tuple[float]:
        require_written(answer)
        kernel = namespace_of("v2", answer).reduce_partitions
        out = torch.empty_like(tmp_out[:, :, 0])
        arguments = out, exp_sums, max_logits, tmp_out, seq_lens
        options = {"watch": REDUCED, "names": "max_logit", "max_turns": MOST_TURNS}
        shared_bytes = 8 * num_partitions
        report = launch(kernel, 1, NUM_THREADS, *arguments, shared_bytes=shared_bytes, **options)
        (seen,) = report.at(REDUCED)
        return (float(seen["max_logit"][0]),)

    name = f"{num_partitions} partitions, the largest maximum in partition {early}"
    return number_trial(name, ("max_logit",), run, (9,))


def namespace_of(file: str, answer: Callable | None, **sizes: object) -> ModuleType:
    """A kernel with an answer in it, for these sizes."""
    functions = [answer] if answer else []
    return BACKENDS[file].with_functions(**{file: functions}).namespace(**sizes)


def called(function: Callable, *arguments: int) -> tuple:
    """What a plain Python function returns; AnswerError if it runs more than MOST_TURNS lines."""
    lines_left = MOST_TURNS

    def count(frame: FrameType, event: str, _: object) -> Callable:
        nonlocal lines_left
        lines_left -= event == "line"
        if lines_left < 0:
            name = frame.f_code.co_name
            raise AnswerError(f"{MOST_TURNS} lines and no end: line {frame.f_lineno} of {name}")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        return function(*arguments)
    finally:
        sys.settrace(before)


def number_trial(
    name: str, names: Sequence[str], run: Callable[..., tuple], right: Sequence[int]
) -> Trial:
    """A function that returns whole numbers, which have names."""

    def found(answer: Callable | None) -> Mapping[str, np.ndarray]:
        numbers = run(answer)
        if not isinstance(numbers, tuple) or len(numbers) != len(names):
            raise AnswerError(f"it returned {numbers!r}; it must return {', '.join(names)}")
        return {"out": np.array(numbers, float)}

    return Trial(
        name=name,
        isolates="numbers",
        meaning="Which of the sizes does each formula need?",
        run=found,
        references={"by hand": lambda: {"out": np.array(right, float)}},
        bounds={"out": 0},
        axes=("|".join(names),),
    )


TRIALS = {file: partial(kernel_trials, file) for file in OF_FILE} | {"sizes": size_trials}
