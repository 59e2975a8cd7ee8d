"""Exercises of notebook 15: the least time of a step, which roof limits, an honest comparison."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.work import attention_flops_and_bytes
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import redrawn, seeded_torch
from pa_tutorial.exercises.exercise import Exercise, require_floats, require_shape
from pa_tutorial.walk.calls import require_written

NOTEBOOK = "15_measuring"
EXACT = 1e-6  # relative; a way to round is no mistake


def numbers_trial(
    words: tuple[str, str, str],
    run: Callable[[Callable | None], Sequence[float]],
    expected: Callable[[], Sequence[float]],
    source: str,
    axis: str,
) -> Trial:
    """A case whose answer is a few numbers, each compared for itself.

    words   name, what it isolates, what its failure means
    source  where the expected numbers come from
    """

    def as_rows(numbers: Sequence[float]) -> dict[str, Tensor]:
        return {"out": torch.tensor(list(numbers), dtype=torch.float64)[:, None]}

    return Trial(
        *words,
        run=lambda function: as_rows(run(function)),
        references={source: lambda: as_rows(expected())},
        bounds={"out": EXACT},
        axes=(axis,),
    )


def kv_bytes(num_tokens: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> int:
    """Of K and V, as torch counts them; no memory is taken."""
    k = torch.empty(num_tokens, num_kv_heads, head_size, dtype=dtype, device="meta")
    return 2 * k.nbytes


# 1. ---------------------------------------------------------------------------------------------


def least_ms(
    seq_lens: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    gb_per_s: float,
) -> float:
    """The least time of a decode step of one layer, in milliseconds: K and V are read once.

    seq_lens  tokens of each sequence, the newest included
    gb_per_s  how fast memory can be read, in 10**9 bytes per second
    """
    # 1. how many numbers has a token in the cache? Which heads have K and V of their own?
    # 2. how many bytes has a number? Every torch.dtype has an itemsize
    # 3. bytes over bytes per second are seconds; milliseconds are asked for
    ### BEGIN SOLUTION
    token_bytes = 2 * num_kv_heads * head_size * dtype.itemsize
    num_bytes = sum(seq_lens) * token_bytes
    return num_bytes / (gb_per_s * 1e9) * 1e3
    ### END SOLUTION


_BYTES = "Bytes of K and of V, of all tokens and KV heads; a number has dtype.itemsize bytes."
_LENS = "Each sequence has tokens of its own: their sum counts."
_SHARED = "Query heads that share a KV head share its K and V, which are read once."
LEAST_CASES = (
    # name, what it isolates, what its failure means, the arguments
    ("one_token", "one token, one head", _BYTES, ((1,), 1, 1, 64, torch.float32, 10.0)),
    ("long", "8,192 tokens", _BYTES, ((8192,), 16, 16, 64, torch.float32, 35.0)),
    ("batch", "8 sequences of 2,048 tokens", _BYTES,
     ((2048,) * 8, 16, 16, 128, torch.float32, 35.0)),
    ("bfloat16", "2 bytes a number", _BYTES, ((2048,) * 8, 16, 16, 128, torch.bfloat16, 35.0)),
    ("gqa", "4 query heads share a KV head", _SHARED,
     ((2048,) * 8, 32, 8, 128, torch.float32, 35.0)),
    ("mqa", "all query heads share one KV head", _SHARED,
     ((700,), 32, 1, 128, torch.float16, 200.0)),
    ("mixed_batch", "64 to 4,096 tokens", _LENS,
     ((64, 4096, 300, 17), 16, 16, 128, torch.float32, 35.0)),
)  # fmt: skip


def other_step(rng: np.random.Generator, name: str, sizes: tuple) -> tuple[None, tuple]:
    """The sequences in another order, heads of another size, another memory."""
    seq_lens, num_heads, num_kv_heads, _, dtype, gb_per_s = sizes
    seq_lens = tuple(rng.permutation(seq_lens).tolist())
    head_size = int(rng.choice((32, 80, 96, 112, 192, 256)))
    gb_per_s = round(gb_per_s * rng.uniform(0.5, 2), 1)
    return None, (seq_lens, num_heads, num_kv_heads, head_size, dtype, gb_per_s)


def least_ms_trials(draw: int = 0) -> list[Trial]:
    def run(sizes: tuple, function: Callable | None) -> list[float]:
        answer = least_ms if function is None else function
        return require_floats([require_written(answer(list(sizes[0]), *sizes[1:]))], ["ms"])

    def expected(sizes: tuple) -> list[float]:
        seq_lens, _, num_kv_heads, head_size, dtype, gb_per_s = sizes
        num_bytes = sum(kv_bytes(n, num_kv_heads, head_size, dtype) for n in seq_lens)
        return [num_bytes / gb_per_s / 1e6]

    return [
        numbers_trial(
            words, partial(run, sizes), partial(expected, sizes), "tensors of this size", "answer"
        )
        for *words, sizes in redrawn(LEAST_CASES, draw, other_step)
    ]


LEAST_MS = Exercise(
    notebook=NOTEBOOK,
    text="""\
No kernel can be faster than reading its K and V once. How long is that, for a batch of sequences of
different lengths? The grader asks tensors of this size how many bytes they have.""",
    solution=least_ms,
    trials=least_ms_trials,
)


# 2. ---------------------------------------------------------------------------------------------


def under_the_roofs(
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    gb_per_s: float,
    peak_gflop_per_s: float,
) -> tuple[float, float, bool]:
    """Where a decode step stands in the roofline.

    peak_gflop_per_s  what the cores can compute, in 10**9 operations per second
    returns           operations per byte of K and V; the most that the two roofs allow, in 10**9
                      operations per second; and whether memory is the roof
    """
    # 1. one number of K: how many query heads use it, each with a multiply and an add?
    # 2. it is the same for V; divide by the bytes of a number
    # 3. memory brings gb_per_s, so it allows that many times the operations per byte
    # 4. of the two roofs the lower one counts; which is it?
    ### BEGIN SOLUTION
    per_byte = 2 * (num_heads // num_kv_heads) / dtype.itemsize
    by_memory = per_byte * gb_per_s
    return per_byte, min(by_memory, peak_gflop_per_s), by_memory < peak_gflop_per_s
    ### END SOLUTION


_INTENSITY = "Two operations a number and query head that shares it, over the bytes of a number."
_ROOF = "The lower of the two roofs counts: gb_per_s * operations per byte, or the peak."
ROOF_CASES = (
    # name, what it isolates, what its failure means, the arguments
    ("mha_float32", "half an operation per byte", _INTENSITY, (16, 16, torch.float32, 35, 60)),
    ("mha_bfloat16", "half the bytes", _INTENSITY, (16, 16, torch.bfloat16, 35, 60)),
    ("gqa_float32", "4 query heads share a number", _ROOF, (32, 8, torch.float32, 35, 60)),
    ("gqa_float16", "4 query heads share 2 bytes", _ROOF, (32, 8, torch.float16, 35, 60)),
    ("many_cores", "the same, and cores that compute more", _ROOF,
     (32, 8, torch.float16, 35, 900)),
    ("mqa", "all query heads share one KV head", _ROOF, (32, 1, torch.bfloat16, 200, 3000)),
    ("gpu", "an H200: 4,800 GB/s and its peak in 16 bits", _ROOF,
     (32, 8, torch.bfloat16, 4800, 989_000)),
)  # fmt: skip


def other_machine(rng: np.random.Generator, name: str, sizes: tuple) -> tuple[str | None, tuple]:
    """Faster or slower, memory and cores nearly alike: the same roof limits."""
    *heads_and_dtype, gb_per_s, peak = sizes
    faster = rng.uniform(0.5, 2)
    gb_per_s, peak = round(gb_per_s * faster, 1), round(peak * faster * rng.uniform(0.9, 1.1), 1)
    words = {
        "many_cores": "4 query heads share 2 bytes, and cores that compute more",
        "gpu": f"a GPU: {gb_per_s:,} GB/s and its peak in 16 bits",
    }
    return words.get(name), (*heads_and_dtype, gb_per_s, peak)


def under_the_roofs_trials(draw: int = 0) -> list[Trial]:
    names = "operations per byte", "most", "memory is the roof"

    def run(sizes: tuple, function: Callable | None) -> list[float]:
        answer = under_the_roofs if function is None else function
        return require_floats(answer(*sizes), names)

    def expected(sizes: tuple) -> list[float]:
        num_heads, num_kv_heads, dtype, gb_per_s, peak = sizes
        flops, _ = attention_flops_and_bytes(1, 256, num_heads, num_kv_heads, 64, dtype)
        num_bytes = kv_bytes(256, num_kv_heads, 64, dtype)
        seconds = num_bytes / gb_per_s, flops / peak  # in 10**-9: of reading, of computing
        return [flops / num_bytes, flops / max(seconds), float(seconds[0] > seconds[1])]

    return [
        numbers_trial(
            words, partial(run, sizes), partial(expected, sizes), "torch's counter", "|".join(names)
        )
        for *words, sizes in redrawn(ROOF_CASES, draw, other_machine)
    ]


ROOFS = Exercise(
    notebook=NOTEBOOK,
    text="""\
Does a decode step wait for memory, or for the cores? It depends on the heads and on the dtype. The
grader lets torch count the operations of a step, and divides by the bytes of its cache.""",
    solution=under_the_roofs,
    trials=under_the_roofs_trials,
)


# 3. ---------------------------------------------------------------------------------------------


def compare_rounds(times: Tensor, num_warm_up: int) -> Tensor:
    """How many times as long does B take as A?

    times        [num_rounds, 2] float64: milliseconds of A and of B, once in every round
    num_warm_up  the first rounds, which do not count
    returns      [3] float64: median, lower quartile and upper quartile of the ratio
    """
    # 1. leave the first rounds out
    # 2. the two times of one round saw the same machine: one ratio for each round
    # 3. Tensor.quantile (its q in the dtype of times); the median of an even number of ratios
    #    lies between the middle two
    ### BEGIN SOLUTION
    a, b = times[num_warm_up:].unbind(dim=1)
    ratios = b / a
    return ratios.quantile(torch.tensor([0.5, 0.25, 0.75], dtype=times.dtype))
    ### END SOLUTION


_PAIRS = "Divide within a round, then take the median: a round saw one state of the machine."
_WARM = "The first num_warm_up rounds compile and fill caches; they are no part of the result."
_EVEN = "Between the middle two: quantile does it, Tensor.median takes the lower one."
ROUNDS_CASES = (
    # name, what it isolates, what its failure means,
    # (rounds, ratio, noise, the machine's last speed over its first, disturbed calls, warm-up)
    ("quiet", "every round is the same", _PAIRS, (9, 1.5, 0, 1, 0, 0)),
    ("warm_up", "two slow rounds at the beginning", _WARM, (11, 1.5, 0.02, 1, 0, 2)),
    ("even", "an even number of rounds", _EVEN, (12, 0.8, 0.1, 1, 0, 0)),
    ("drift", "a machine that becomes half as fast", _PAIRS, (25, 1.2, 0.05, 0.5, 0, 1)),
    ("outliers", "every fifth call is disturbed", _PAIRS, (25, 1.2, 0.05, 1, 0.2, 1)),
    ("all", "drift and disturbed calls", _PAIRS, (40, 3.0, 0.1, 0.6, 0.2, 3)),
)  # fmt: skip


def made_up_rounds(
    num_rounds: int,
    ratio: float,
    noise: float,
    slower: float,
    disturbed: float,
    num_warm_up: int,
    draw: int,
) -> Tensor:
    """[num_warm_up + num_rounds, 2]: times of A and B on a machine as described."""
    generator = seeded_torch(num_rounds, draw)
    total = num_warm_up + num_rounds
    speed = torch.linspace(1, slower, total, dtype=torch.float64)[:, None]
    times = torch.tensor([2.0, 2.0 * ratio], dtype=torch.float64) / speed
    chance = torch.rand(2, total, 2, generator=generator, dtype=torch.float64)
    times = times * (1 + noise * chance[0])
    times[chance[1] < disturbed] *= 5
    times[:num_warm_up] *= torch.tensor([9.0, 200.0], dtype=torch.float64)
    return times


def other_ratio(rng: np.random.Generator, name: str, how: tuple) -> tuple[None, tuple]:
    num_rounds, _, *rest = how
    return None, (num_rounds, float(rng.uniform(1.2, 4) ** rng.choice((-1, 1))), *rest)


def compare_rounds_trials(draw: int = 0) -> list[Trial]:
    def run(how: tuple, function: Callable | None) -> list[float]:
        answer = compare_rounds if function is None else function
        return require_shape(answer(made_up_rounds(*how, draw), how[-1]), [3]).tolist()

    def expected(how: tuple) -> list[float]:
        ratios = [b / a for a, b in made_up_rounds(*how, draw).tolist()[how[-1] :]]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return [middle, low, high]

    axis = "median|lowest quartile|highest quartile"
    return [
        numbers_trial(words, partial(run, how), partial(expected, how), "Python's statistics", axis)
        for *words, how in redrawn(ROUNDS_CASES, draw, other_ratio)
    ]


ROUNDS = Exercise(
    notebook=NOTEBOOK,
    text="""\
`interleaved` has timed A and B once in each round. Make of the raw times what can be believed on a
machine that is not always equally fast: a ratio with its spread.""",
    solution=compare_rounds,
    trials=compare_rounds_trials,
)

EXERCISES = (LEAST_MS, ROOFS, ROUNDS)
