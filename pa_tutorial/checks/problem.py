"""The inputs of every stage, whole sequences and single decode steps, with their oracle.

A problem is a handful of numbers and a seed. Its tensors are drawn anew at every call,
so no stage can change what the next one sees, and no stage gets to see the oracle.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import FLT_MAX, require, require_heads
from pa_tutorial.attention.step import DecodeStep, QuantizedStep
from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM, encode, load
from pa_tutorial.checks import oracle
from pa_tutorial.checks.decode_inputs import DecodeInputs, draw_block_tables, with_gaps
from pa_tutorial.checks.regimes import (
    SCORE_REGIMES,
    SOFTMAX_REGIMES,
    make_extreme,
    set_scores,
    strided_view,
)
from pa_tutorial.paging.layouts import DTYPES, HEAD_SIZES, LAYOUTS

# Of each 8-bit type: bits of mantissa, bias of the exponent, largest number.
FORMATS = {torch.float8_e4m3fn: (3, 7, 448.0), torch.float8_e5m2: (2, 15, 57344.0)}
# The trained model reads a sentence about the subject it was trained on.
SENTENCE = "The class statement defines a new class, and the methods of its instances."


class _Case:
    """What both kinds of problem have in common as cases: an id, and what the case is about."""

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}"

    def isolating(self, isolates: str, meaning: str) -> Self:
        """The same problem, with the property that it isolates and what must hold in it."""
        return replace(self, isolates=isolates, meaning=meaning)


@dataclass(frozen=True)
class SequenceProblem(_Case):
    """One sequence through a whole TinyLM; attention is compared in every layer at every position.

    steps      how many tokens a cache gets at a time: the prompt, then 1, 1, 1, …;
               a stage without a cache sees all of them at once
    scores     flat, ordinary or sharp: by the scale of the query projection;
               extreme: near +300 and -300, differing by head and by the parity of the position
    strided_q  q is a view into a tensor that holds k and v too, as after a fused projection
    trained    the committed weights on a sentence, instead of random weights on random bytes
    """

    kind: ClassVar[str] = "sequence"
    # What the dimensions of the output count, for a message about the worst place.
    axes: ClassVar[tuple[str, ...]] = ("layer", "position", "head", "dimension")

    name: str
    isolates: str = ""
    meaning: str = ""
    steps: tuple[int, ...] = (9, 1, 1, 1, 1)
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 4
    head_size: int = 32
    scores: str = "ordinary"
    alibi: bool = False
    strided_q: bool = False
    trained: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        least = min(self.steps, default=0)
        require(least >= 1, "steps", self.steps, "at least one step, 1 or more tokens each")
        longest = len(encode(SENTENCE)) if self.trained else TinyConfig.max_len
        require(self.seq_len <= longest, "steps", self.steps, f"at most {longest} tokens in all")
        require(self.num_layers >= 1, "num_layers", self.num_layers, "at least 1")
        require_heads(self.num_heads, self.num_kv_heads)
        require(self.head_size in HEAD_SIZES, "head_size", self.head_size, f"one of {HEAD_SIZES}")
        allowed = (*SOFTMAX_REGIMES, "extreme")
        require(self.scores in allowed, "scores", self.scores, f"one of {allowed}")

    @property
    def seq_len(self) -> int:
        return sum(self.steps)

    @property
    def config(self) -> TinyConfig:
        if self.trained:
            return TinyConfig()
        names = ("num_layers", "num_heads", "num_kv_heads", "head_size", "alibi")
        return TinyConfig(**{name: getattr(self, name) for name in names})

    def tokens(self) -> Tensor:
        """[seq_len] int64"""
        if self.trained:
            return encode(SENTENCE)[: self.seq_len]
        return torch.from_numpy(np.random.default_rng(self.seed).integers(0, 256, self.seq_len))

    def model(self) -> TinyLM:
        """Random weights, which keep every score and activation near N(0, 1); or the trained ones.

        Whoever asks for it again gets the same object.
        """
        return _model_of(self)

    def expected(self) -> dict[str, oracle.Array]:
        """Float64: out [num_layers, seq_len, num_heads, head_size],
        qk and logits [num_layers, num_heads, seq_len, seq_len]."""
        return _expected_of_sequence(self)


@dataclass(frozen=True)
class DecodeProblem(_Case):
    """One decode step: each sequence has one new query over all its keys and values.

    seq_lens   tokens of each sequence, including the current one
    scores     flat, ordinary, sharp (the largest weight is over one half),
               deep_negative (all near -300), huge (all near 10,000), equal,
               opposite (all exactly minus the scale),
               extreme (near -300 and +300, by head and sequence),
               drifting (rising from -300 to 300 in even heads, falling in odd ones)
    strided_q  q is a view into a tensor that holds k and v too, as after a fused projection
    scale_factor   the scale is this times the usual head_size ** -0.5
    values_factor  V is this times the usual N(1/2, 1)
    rounded_to     all numbers are multiples of this, for readability; 0: not rounded

    For stages that read a paged cache:
    tables         block tables; by default they are drawn at random (see draw_block_tables)
    shared_blocks  all sequences begin with the same tokens, in the same blocks
    block_zero     block 0, which pads the tables, holds tokens of the first sequence
    pad_columns    columns of the block tables that no sequence needs
    stale          slots without a token hold numbers, as if from an older sequence, not NaN
    gaps           K and V of a head are side by side, and each block has an extra head of NaN
    called_twice   a second call, with other numbers, must not change the first call's result
    cache_dtype    of an 8-bit cache, float8_e4m3fn or float8_e5m2; None: as q
    k_scale        of an 8-bit cache: one number, one per KV head, or (): 1; v_scale: the same
    partition_size of a stage that has partitions; 0: see some_partitions in ladder.py
    about_blocks   the case only concerns such stages
    """

    kind: ClassVar[str] = "decode"
    axes: ClassVar[tuple[str, ...]] = ("sequence", "head", "dimension")

    name: str
    isolates: str = ""
    meaning: str = ""
    seq_lens: tuple[int, ...] = (29, 17)
    num_heads: int = 4
    num_kv_heads: int = 4
    head_size: int = 64
    dtype: torch.dtype = torch.float32
    scores: str = "ordinary"
    alibi: bool = False
    strided_q: bool = False
    scale_factor: float = 1.0
    values_factor: float = 1.0
    rounded_to: float = 0.0
    seed: int = 0
    block_size: int = 16
    tables: tuple[tuple[int, ...], ...] | None = None
    shared_blocks: int = 0
    block_zero: bool = False
    pad_columns: int = 1
    stale: bool = False
    gaps: bool = False
    called_twice: bool = False
    cache_dtype: torch.dtype | None = None
    k_scale: tuple[float, ...] = ()
    v_scale: tuple[float, ...] = ()
    partition_size: int = 0
    about_blocks: bool = False

    def __post_init__(self) -> None:
        least = min(self.seq_lens, default=0)
        require(least >= 1, "seq_lens", self.seq_lens, "at least one length, 1 or more each")
        require_heads(self.num_heads, self.num_kv_heads)
        require(self.dtype in DTYPES, "dtype", self.dtype, f"one of {DTYPES}")
        cached, allowed = self.cache_dtype, f"None or one of {tuple(FORMATS)}"
        require(cached is None or cached in FORMATS, "cache_dtype", cached, allowed)
        for name in ("k_scale", "v_scale"):
            given, lengths = getattr(self, name), (0, 1, self.num_kv_heads) if cached else (0,)
            allowed = f"a tuple of as many numbers as one of {lengths}, each positive and finite"
            right = isinstance(given, tuple) and len(given) in lengths
            require(right and all(0 < n <= FLT_MAX for n in given), name, given, allowed)
        fits = self.head_size >= 1 and self.head_size % self.x == 0
        allowed = f"a multiple of x = 16 / itemsize, which is {self.x} for {cached or self.dtype}"
        require(fits, "head_size", self.head_size, allowed)
        require(self.scores in SCORE_REGIMES, "scores", self.scores, f"one of {SCORE_REGIMES}")
        require(self.block_size >= 1, "block_size", self.block_size, "at least 1")
        shared, most = self.shared_blocks, least // self.block_size
        require(0 <= shared <= most, "shared_blocks", shared, f"0 to {most}")

    @property
    def scale(self) -> float:
        return self.scale_factor * self.head_size**-0.5

    @property
    def x(self) -> int:
        return 16 // (self.cache_dtype or self.dtype).itemsize

    def alibi_slopes(self) -> Tensor | None:
        """[num_heads] float32, or None.

        From 0.7, where every single step of distance matters, down to 0.002, where thousands do.
        No narrow type can hold them exactly.
        """
        if not self.alibi:
            return None
        return 0.7 * 0.003 ** torch.linspace(0, 1, self.num_heads)

    def inputs(self) -> DecodeInputs:
        """Fresh tensors, the same at every call."""
        rng = np.random.default_rng(self.seed)
        q = rng.standard_normal((len(self.seq_lens), self.num_heads, self.head_size))
        keys = rng.standard_normal((sum(self.seq_lens), self.num_kv_heads, self.head_size))
        # V has a mean of one half, so that sums of V, and rounding errors, grow with the length.
        values = (rng.standard_normal(keys.shape) + 0.5) * self.values_factor
        set_scores(self.scores, self.seq_lens, self.scale, q, keys, rng)
        drawn = [q, keys, values]
        if self.rounded_to:
            drawn = [(a / self.rounded_to).round() * self.rounded_to for a in drawn]
        q, keys, values = (torch.from_numpy(array).to(self.dtype) for array in drawn)
        if self.strided_q:
            q = strided_view(q)
        lens = list(self.seq_lens)
        keys, values = list(keys.split(lens)), list(values.split(lens))
        shared = self.shared_blocks * self.block_size
        for tokens in (keys, values):
            for other in tokens[1:]:
                other[:shared] = tokens[0][:shared]
        return DecodeInputs(q, keys, values, self.scale, self.alibi_slopes())

    def block_tables(self) -> tuple[list[list[int]], int]:
        """The block tables without padding, and the number of blocks in the pool."""
        if self.tables is not None:
            return [list(table) for table in self.tables], 2 + max(map(max, self.tables))
        return draw_block_tables(
            self.seq_lens, self.block_size, self.shared_blocks, self.block_zero, self.seed
        )

    def paged(self, layout: str) -> DecodeStep:
        """The same inputs with K and V in blocks; layout is "vllm" or "plain"."""
        require(layout in LAYOUTS, "layout", repr(layout), f"one of {tuple(LAYOUTS)}")
        inputs = self.inputs()
        tables, num_blocks = self.block_tables()
        tokens = (self.stored(inputs.keys, self.k_scale), self.stored(inputs.values, self.v_scale))
        caches = oracle.paged_cache(*tokens, tables, num_blocks, self.block_size, layout, self.x)
        if self.stale:
            rng = np.random.default_rng((self.seed, 3))
            for cache in caches:
                empty = np.isnan(cache)
                cache[empty] = rng.standard_normal(int(empty.sum()))
        caches = [torch.from_numpy(c).to(self.cache_dtype or self.dtype) for c in caches]
        width = max(map(len, tables)) + self.pad_columns
        scales = {n: torch.tensor(getattr(self, n) or 1.0) for n in ("k_scale", "v_scale")}
        k_cache, v_cache = with_gaps(*caches) if self.gaps else caches
        return (QuantizedStep if self.cache_dtype else DecodeStep)(
            q=inputs.q,
            k_cache=k_cache,
            v_cache=v_cache,
            block_tables=torch.tensor(
                [table + [0] * (width - len(table)) for table in tables], dtype=torch.int32
            ),
            seq_lens=torch.tensor(self.seq_lens, dtype=torch.int32),
            scale=inputs.scale,
            alibi_slopes=inputs.alibi_slopes,
            **(scales if self.cache_dtype else {}),
        )

    def stored(self, tokens: list[Tensor], scale: tuple[float, ...]) -> list[oracle.Array]:
        """What the cache holds of each sequence, in float64: numbers / scale if it is 8-bit."""
        arrays = [float64(own) for own in tokens]
        if self.cache_dtype is None:
            return arrays
        return [oracle.float8(a / scale_rows(scale), *FORMATS[self.cache_dtype]) for a in arrays]

    def expected(self) -> dict[str, oracle.Array]:
        """Float64: out and accs (the same) [num_seqs, num_heads, head_size],
        qk (padded with -inf) and logits (padded with 0) [num_seqs, num_heads, max(seq_lens)],
        qk_max and exp_sum [num_seqs, num_heads, 1]."""
        return _expected_of_decode(self)


def scale_rows(scale: tuple[float, ...]) -> oracle.Array:
    """[num_kv_heads, 1] float32 scales, as float64."""
    return np.array(scale or (1,), np.float32).astype(np.float64)[:, None]


def float64(tensor: Tensor | None) -> oracle.Array | None:
    return None if tensor is None else tensor.double().numpy()


@lru_cache(maxsize=4)  # a case needs it for the stage, for the stages before it and the oracle
def _model_of(problem: SequenceProblem) -> TinyLM:
    if problem.trained:
        return load()
    rng = np.random.default_rng((problem.seed, 1))
    model = TinyLM(problem.config).requires_grad_(False)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.fill_(1.0)
            continue
        fan_in = 1 if "embedding" in name else weight.shape[1]
        weight.copy_(torch.from_numpy(rng.standard_normal(weight.shape) * fan_in**-0.5))
    if problem.scores == "extreme":
        make_extreme(model, rng)
    else:
        factor = {"flat": 0.05, "ordinary": 1.0, "sharp": 8.0}[problem.scores]
        for layer in model.layers:
            layer.to_q.weight.mul_(factor)
    return model


@lru_cache(maxsize=64)
def _expected_of_sequence(problem: SequenceProblem) -> dict[str, oracle.Array]:
    weights = {name: float64(w) for name, w in problem.model().state_dict().items()}
    sizes = problem.config.num_layers, problem.config.head_size
    slopes = float64(problem.config.alibi_slopes())
    return oracle.tiny_lm(weights, problem.tokens().numpy(), *sizes, slopes)


@lru_cache(maxsize=64)
def _expected_of_decode(problem: DecodeProblem) -> dict[str, oracle.Array]:
    inputs, slopes = problem.inputs(), float64(problem.alibi_slopes())
    qk = np.full((*inputs.q.shape[:2], max(problem.seq_lens)), -np.inf)
    logits = np.zeros_like(qk)
    out = np.zeros(inputs.q.shape)
    keys = problem.stored(inputs.keys, problem.k_scale)
    values = problem.stored(inputs.values, problem.v_scale)
    for sequence, seq_len in enumerate(problem.seq_lens):
        q, k, v = float64(inputs.q[sequence : sequence + 1]), keys[sequence], values[sequence]
        if problem.cache_dtype:
            k, v = k * scale_rows(problem.k_scale), v * scale_rows(problem.v_scale)
        attended = oracle.attend(q, k, v, inputs.scale, slopes, first=seq_len - 1)
        qk[sequence, :, :seq_len] = attended["qk"][:, 0]
        logits[sequence, :, :seq_len] = attended["logits"][:, 0]
        out[sequence] = attended["out"][0]
    qk_max = qk.max(axis=-1, keepdims=True)
    exp_sum = np.exp(qk - qk_max).sum(axis=-1, keepdims=True)
    scores = {"qk": qk, "qk_max": qk_max, "exp_sum": exp_sum, "logits": logits}
    return scores | {"accs": out, "out": out}
