"""What a function of a kernel leaves when it is called by itself.

This comes before the scores, or at a place that a reader of its notebook knows: so it is the first
wrong number.
"""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import ModuleType

import numpy as np
import torch
from numba import cuda, float32
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.endless import stopped_if_endless
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.our_kernels import BACKENDS
from pa_tutorial.exercises.ours import require_theirs
from pa_tutorial.exercises.random_inputs import reseeded, seeded_torch
from pa_tutorial.exercises.together import Functions, with_answer
from pa_tutorial.kernels.cuda_launch import as_stored
from pa_tutorial.kernels.geometry import BLOCK_SIZES, DTYPES, HEAD_SIZES, Geometry
from pa_tutorial.kernels.intermediates import REDUCED
from pa_tutorial.kernels.v1 import (
    BLOCK_SIZE,
    HEAD_SIZE,
    K_VECS_SHAPE,
    NUM_THREADS,
    NUM_WARPS,
    Q_VECS_SHAPE,
    WARP_SIZE,
    X,
    fill_logits,
    index_t,
    load_key,
    load_query,
    scalar_t,
    warp_max,
)
from pa_tutorial.paging.layouts import VllmLayout, reshape_and_cache
from simt import Report, launch

MOST_TURNS = 4_000  # of loops in a thread block: an endless one is stopped. Ours take up to 611

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


def with_trials_of(
    file: str, name: str, draw: int, beside: Functions, trials: list[Trial]
) -> list[Trial]:
    """The cases of a function, and before or behind them those in which it is by itself."""
    match name:
        case "load_query":
            more_vecs = {"HEAD_SIZE": 192, "DTYPE": torch.float32}  # than thread groups
            sizes = {}, more_vecs
            return [*(query_trial(file, trials[0], **one) for one in sizes), *trials]
        case "load_key":
            return [key_trial(file, trials[0]), *trials]
        case "fill_logits":
            return [*trials, range_trial(file, draw, beside)]
        case "warp_max":
            return [*trials, exchange_trial(file, draw)]
        case "bounds_of_partition":
            pairs = ((11, 0), (16, 0), (17, 1), (25, 1), (100 + draw % 100, 3))
            return [*(bounds_trial(*pair) for pair in pairs), *trials]
        case "largest_of_partitions":
            return [*trials, early_maximum_trial(draw, beside)]
    return trials


def namespace_of(file: str, mine: Functions, **sizes: object) -> ModuleType:
    """A kernel with functions in it, for these sizes."""
    return BACKENDS[file].with_functions(**mine).namespace(**sizes)


def left_by(kernel: Callable, name: str, *inputs: object, shared_bytes: int = 0) -> np.ndarray:
    """What is in an array when a kernel ends; NaN: never written."""
    options = {"watch": "end", "names": name, "max_turns": MOST_TURNS}
    report = launch(kernel, 1, NUM_THREADS, *inputs, shared_bytes=shared_bytes, **options)
    return report.at("end")[0][name].astype(float).filled(np.nan)


def calling(kernel: Callable, file: str, mine: Functions, **sizes: object) -> Callable:
    """A kernel of ours, among the functions of a file's kernel, which it calls."""
    mine = {**mine, file: (*mine.get(file, ()), kernel)}
    return getattr(namespace_of(file, mine, **sizes), kernel.py_func.__name__)


@cuda.jit
def call_load_query(q):
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=16)
    load_query(q_vecs, q, index_t(cuda.threadIdx.x))


def query_trial(file: str, whole: Trial, **sizes: object) -> Trial:
    """What load_query leaves in q_vecs; its picture is that of a whole kernel."""
    ours = namespace_of(file, {}, **sizes)
    shares, vecs, size = ours.Q_VECS_SHAPE
    places = list(product(range(shares), range(vecs), range(size)))
    right = [(share + vec * shares) * size + e for share, vec, e in places]

    def run(answer: Callable | None) -> np.ndarray:
        require_theirs(answer)
        q, mine = torch.arange(ours.HEAD_SIZE).to(ours.DTYPE), with_answer({}, file, answer)
        return left_by(calling(call_load_query, file, mine, **sizes), "q_vecs", q).ravel()

    names = [f"q_vecs{[*place]}" for place in places]
    name = f"by itself, where q[d] is d; HEAD_SIZE {ours.HEAD_SIZE}"
    return number_trial(name, names, run, right, trace=whole.trace)


@cuda.jit
def call_load_key(k_cache, block_idx, offset):
    k_vecs = cuda.local.array(K_VECS_SHAPE, float32)
    load_key(k_vecs, k_cache[block_idx, 0], offset, index_t(cuda.threadIdx.x))


def key_trial(file: str, whole: Trial) -> Trial:
    """What load_key leaves in k_vecs of the lanes of a warp."""
    shares, (vecs, size) = Q_VECS_SHAPE[0], K_VECS_SHAPE
    slot = 3
    places = list(product(range(WARP_SIZE), range(vecs), range(size)))
    right = [100 * slot + (t % shares + vec * shares) * size + e for t, vec, e in places]

    def run(answer: Callable | None) -> np.ndarray:
        require_theirs(answer)
        pieces, slots, elements = np.ogrid[: HEAD_SIZE // X, :BLOCK_SIZE, :X]
        k_cache = torch.tensor(100 * slots + pieces * X + elements).half()[None, None]
        inputs = k_cache, np.int32(0), np.int32(slot)
        kernel = calling(call_load_key, file, with_answer({}, file, answer))
        return left_by(kernel, "k_vecs", *inputs)[:WARP_SIZE].ravel()

    names = [f"k_vecs[{vec}, {e}] of thread {t}" for t, vec, e in places]
    name = f"by itself, in slot {slot}, where element d of slot s is 100 s + d"
    return number_trial(name, names, run, right, trace=whole.trace)


@cuda.jit
def call_fill_logits(q, k_cache, block_table, seq_len, scale):
    thread_idx = index_t(cuda.threadIdx.x)
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=16)
    logits = cuda.shared.array(0, float32, alignment=16)
    load_query(q_vecs, q, thread_idx)
    blocks, slope = (1, 2), float32(0)
    fill_logits(logits, q_vecs, k_cache, 0, block_table, blocks, seq_len, scale, slope, thread_idx)


def range_trial(file: str, draw: int, beside: Functions) -> Trial:
    """The scores of the worked example's second block, which are all that logits has room for."""
    problem = reseeded(WORKED_EXAMPLE, draw)
    (seq_len,) = problem.seq_lens

    def right() -> list[float]:
        scores = problem.expected()["qk"][0, 0, BLOCK_SIZE:seq_len]
        return [*map(float, scores), *[0.0] * (2 * BLOCK_SIZE - seq_len)]

    def run(answer: Callable | None) -> np.ndarray:
        require_theirs(answer)
        kernel = calling(call_fill_logits, file, with_answer(beside, file, answer))
        step = problem.paged("vllm")
        inputs = step.q[0, 0], step.k_cache, step.block_tables[0], np.int32(seq_len)
        inputs, size = (*inputs, np.float32(step.scale)), 4 * BLOCK_SIZE
        return left_by(kernel, "logits", *inputs, shared_bytes=size)

    names = [f"logits[{i}]" for i in range(BLOCK_SIZE)]
    name = "by itself, on blocks (1, 2) of the worked example: logits begins with token 8"
    return number_trial(name, names, run, right, bound=1e-3)


@cuda.jit
def call_warp_max(out, values):
    lane = cuda.threadIdx.x
    out[lane] = warp_max(values[lane], NUM_WARPS // 2, 1)


def exchange_trial(file: str, draw: int) -> Trial:
    """As block_max calls warp_max for the maxima of the warps: in every lane, of few lanes."""
    values = torch.randperm(WARP_SIZE, generator=seeded_torch(11, draw)).float()
    right = values.view(-1, NUM_WARPS).amax(1).repeat_interleave(NUM_WARPS)

    def run(answer: Callable | None) -> np.ndarray:
        require_theirs(answer)
        kernel = calling(call_warp_max, file, with_answer({}, file, answer))
        out = torch.full_like(values, torch.nan)
        launch(kernel, 1, WARP_SIZE, out, values, max_turns=MOST_TURNS)
        return out.numpy()

    names = [f"the result of lane {lane}" for lane in range(WARP_SIZE)]
    return number_trial("by itself: mask 2, smallest_mask 1", names, run, right.tolist())


def slot_trials(draw: int) -> list[Trial]:
    return [slot_trial(draw, *case) for case in SLOT_CASES]


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
        kernel = namespace_of("naive", with_answer({}, "naive", answer), **sizes).write_keys
        k_cache = layout.empty()[0].fill_(EMPTY)
        arrays = as_stored(k_cache), as_stored(key), slot_mapping
        report = launch(kernel, len(slots), NUM_THREADS, *arrays, max_turns=MOST_TURNS, **options)
        return k_cache.float(), report

    def run(answer: Callable | None) -> Mapping[str, Tensor]:
        require_theirs(answer)
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
        trace=lambda answer, _=None: launched(answer, trace="all", collect=True)[1].trace,
    )


def size_trials(name: str, draw: int) -> list[Trial]:
    """One case per size of vLLM's list; the geometry of the package says what is right."""
    sizes = SIZES
    if draw:
        sizes = np.random.default_rng(draw).permutation(np.array(SIZES, dtype=object)).tolist()
    return [size_trial(name, *one) for one in sizes]


def size_trial(name: str, head_size: int, block_size: int, dtype: torch.dtype) -> Trial:
    """A function of sizes.py, from its namespace."""
    names, geometry = NUMBERS[name], Geometry(head_size, block_size, dtype)
    arguments = head_size, block_size, dtype.itemsize
    return number_trial(
        f"HEAD_SIZE {head_size}, BLOCK_SIZE {block_size}, itemsize {dtype.itemsize}",
        names,
        lambda sizes: whole_numbers(names, getattr(sizes, name)(*arguments)),
        [getattr(geometry, name) for name in names],
    )


def bounds_trial(seq_len: int, partition_idx: int) -> Trial:
    """bounds_of_partition by itself, as Python computes it: partitions of 16 tokens."""
    tokens = range(seq_len)[16 * partition_idx : 16 * (partition_idx + 1)]
    names = "num_tokens", "the first block", "the block after the last"

    def run(answer: Callable | None) -> tuple[int, ...]:
        mine = with_answer({}, "v2", answer)
        kernel = namespace_of("v2", mine, BLOCK_SIZE=8, PARTITION_SIZE=16)
        bounds = kernel.bounds_of_partition.py_func
        with stopped_if_endless([bounds]):
            found = bounds(partition_idx, seq_len)
        is_nested = isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], tuple)
        if not is_nested:
            allowed = "two values, num_tokens and (start_block_idx, end_block_idx)"
            raise AnswerError(f"it returned {reprlib.repr(found)}; it must return {allowed}")
        return whole_numbers(names, (found[0], *found[1]))

    return number_trial(
        f"partition {partition_idx} of {seq_len} tokens, PARTITION_SIZE 16, BLOCK_SIZE 8",
        names,
        run,
        (len(tokens), tokens[0] // 8, tokens[-1] // 8 + 1),
    )


def early_maximum_trial(draw: int, beside: Functions) -> Trial:
    """More partitions than threads, and the largest maximum is the first that its thread sees.
    Behind them, max_logits has room for a longer sequence."""
    num_partitions, room, early = 140, 150, draw % 12
    max_logits = torch.randn(1, 1, room, generator=seeded_torch(3, draw))
    max_logits[..., early], max_logits[..., num_partitions:] = 9, 1e30
    exp_sums = torch.ones_like(max_logits)
    tmp_out = torch.ones(1, 1, room, 32, dtype=torch.float16)
    seq_lens = torch.tensor([8 * num_partitions], dtype=torch.int32)

    def run(answer: Callable | None) -> tuple[float]:
        require_theirs(answer)
        kernel = namespace_of("v2", with_answer(beside, "v2", answer)).reduce_partitions
        out = torch.empty_like(tmp_out[:, :, 0])
        arguments = out, exp_sums, max_logits, tmp_out, seq_lens
        options = {"watch": REDUCED, "names": "max_logit", "max_turns": MOST_TURNS}
        shared_bytes = 8 * room
        report = launch(kernel, 1, NUM_THREADS, *arguments, shared_bytes=shared_bytes, **options)
        (seen,) = report.at(REDUCED)
        return (float(seen["max_logit"][0]),)

    name = f"{num_partitions} partitions, the largest maximum in partition {early}; then 1e30"
    return number_trial(name, ("max_logit",), run, (9,))


def whole_numbers(names: Sequence[str], found: object) -> tuple[int, ...]:
    """What a function returned. Raises AnswerError unless it is as many whole numbers as names."""
    if not isinstance(found, tuple) or len(found) != len(names):
        allowed = ", ".join(names)
        raise AnswerError(f"it returned {reprlib.repr(found)}; it must return {allowed}")
    for name, number in zip(names, found, strict=True):
        if not isinstance(number, int | np.integer):
            words = f"{name} is {reprlib.repr(number)}; it must be a whole number"
            hint = ", so divide by `//`, not by `/`" if isinstance(number, float) else ""
            raise AnswerError(words + hint)
    return found


def number_trial(
    name: str,
    names: Sequence[str],
    run: Callable[..., Sequence[float]],
    right: Sequence[float] | Callable[[], Sequence[float]],
    bound: float = 0,
    trace: Callable | None = None,
) -> Trial:
    """A function that returns or leaves numbers, which have names; NaN: never written."""

    def found(answer: Callable | None) -> Mapping[str, np.ndarray]:
        return {"out": np.array(run(answer), float)}

    return Trial(
        name=name,
        isolates="numbers",
        meaning="Which of the sizes does each formula need?",
        run=found,
        references={"by hand": lambda: {"out": np.array(right() if callable(right) else right)}},
        bounds={"out": bound},
        axes=("|".join(names),),
        trace=trace,
    )
