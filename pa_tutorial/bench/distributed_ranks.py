"""What each of two ranks does while the section `many_devices` of `make bench` measures.

Both ranks are given the same ways in the same order, and begin each together. In a way that is of
one rank alone the other one waits, asleep in a barrier.
"""

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pa_tutorial.attention.online import Part
from pa_tutorial.bench.cpu_inputs import Batch, ColdCaches, read_once
from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.bench.engine_memory import NoModel
from pa_tutorial.bench.timing import host_milliseconds
from pa_tutorial.distributed.context import deal_out, merge_over_ranks
from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.heads import heads_of, shard_heads
from pa_tutorial.distributed.runner import ParallelRunner
from pa_tutorial.distributed.wire import Wire
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.engine.model import Llama, LlamaConfig
from pa_tutorial.engine.runner import Runner
from pa_tutorial.kernels.cpu_launch import CpuLaunch, prepare_cpu

Way = Callable[[], float]  # does something and returns its milliseconds
Times = dict[str, list[float]]  # of each way, round by round

ONE, TWO = "one rank", "two ranks"  # of two ranks, each reads or computes as much as one alone
READ_ONE, READ_TWO = "one rank reads", "two ranks read"
MULTIPLY_ONE, MULTIPLY_TWO = "one rank multiplies", "two ranks multiply"
HEADS, BLOCKS, MERGE = "by heads", "by blocks", "merge alone"
BLOCK_SIZE = 16
TOLERANCE = 1e-4  # of an output of attention over N(0, 1)


def idle() -> float:
    return 0.0


def timed(function: Callable[[], object], times: int = 1) -> Way:
    """Milliseconds of one call, by the mean of so many."""

    def repeat() -> None:
        for _ in range(times):
            function()

    return lambda: host_milliseconds(repeat) / times


def alone(group: Group, function: Callable[[], object]) -> Way:
    return timed(function) if group.rank == 0 else idle


def taken(
    group: Group,
    ways: Mapping[str, Way],
    rounds: int,
    before: Callable[[], object] = idle,
    seed: int = 0,
) -> Times:
    """Every way once a round, in random order, after one round that is not counted.

    ways    the same names on both ranks, in the same order
    before  called before each way, not counted
    """
    order, rng = list(ways), random.Random(seed)
    times: Times = {name: [] for name in order}
    for round_index in range(rounds + 1):
        rng.shuffle(order)
        for name in order:
            before()
            dist.barrier(group=group.control)
            milliseconds = ways[name]()
            dist.barrier(group=group.control)  # nobody goes on while another is measured
            if round_index > 0:
                times[name].append(milliseconds)
    return times


# The link and the device ------------------------------------------------------------------------


def measure_link(group: Group, sizes: list[int], most_repeats: int, rounds: int) -> Times:
    """All-reduces of float32. sizes: bytes; small ones are repeated, for the clock."""
    ways = {}
    for num_bytes in sizes:
        repeats = max(1, min(most_repeats, 2**22 // num_bytes))
        ways[str(num_bytes)] = timed(partial(dist.all_reduce, torch.zeros(num_bytes // 4)), repeats)
    return taken(group, ways, rounds)


def reading_ways(group: Group, num_bytes: int) -> dict[str, Way]:
    """Reading so many bytes of its own with one thread: one rank, and both at the same time."""
    words = np.ones(num_bytes // 8, np.int64)
    read = partial(read_once, words, 1)
    return {READ_ONE: alone(group, read), READ_TWO: timed(read)}


def measure_devices(group: Group, num_bytes: int, size: int, rounds: int) -> Times:
    """Reading, and products of matrices [size, size] in float32."""
    a, b, out = torch.randn(3, size, size)
    multiply = partial(torch.mm, a, b, out=out)
    ways = {MULTIPLY_ONE: alone(group, multiply), MULTIPLY_TWO: timed(multiply)}
    return taken(group, reading_ways(group, num_bytes) | ways, rounds)


# Attention --------------------------------------------------------------------------------------


def part_of_launch(launch: CpuLaunch) -> Part:
    """What the compiled kernel finds over the blocks that it is given."""
    out = launch.run()
    m, l = torch.from_numpy(launch.qk_max), torch.from_numpy(launch.exp_sum)
    return Part(m, l, out * l[..., None])


def by_heads(batch: Batch, group: Group) -> tuple[CpuLaunch, range]:
    """The kernel over K and V of one rank's heads, and which query heads these are."""
    shape = batch.shape
    heads, kv = heads_of(group.rank, group.num_ranks, shape.num_heads, shape.num_kv_heads)
    k_cache, v_cache = (c[:, kv.start : kv.stop].contiguous() for c in batch.memory)
    q = batch.q[:, heads.start : heads.stop].contiguous()
    own = q, k_cache, v_cache, batch.block_tables, batch.seq_lens, batch.scale
    return prepare_cpu(*own), heads


def by_blocks(batch: Batch, group: Group) -> CpuLaunch:
    """The kernel over the blocks that are dealt out to this rank: each sequence has at least one.

    own_part of distributed.context gathers K and V first, which no bandwidth predicts.
    """
    share = deal_out(
        batch.k_cache,
        batch.v_cache,
        batch.block_tables,
        batch.seq_lens,
        group.rank,
        group.num_ranks,
    )
    own_lens = share.is_token(batch.seq_lens).sum(dim=1, dtype=torch.int32)
    tables = share.block_tables
    return prepare_cpu(batch.q, share.k_cache, share.v_cache, tables, own_lens, batch.scale)


def measure_attention(group: Group, shape: Shape, rounds: int, flush_bytes: int) -> Times:
    """One decode step with cold caches on one rank, and on both in either way.

    Raises ArithmeticError if a way computes something else than one rank does.
    """
    batch = Batch(shape)
    whole = prepare_cpu(*batch.arguments)
    (own, heads), dealt = by_heads(batch, group), by_blocks(batch, group)
    expected = whole.run()
    part = part_of_launch(dealt)
    require_close(HEADS, own.run(), expected[:, heads.start : heads.stop])
    require_close(BLOCKS, merge_over_ranks(part), expected)
    ways = {
        ONE: alone(group, whole.run),
        HEADS: timed(own.run),
        BLOCKS: timed(lambda: merge_over_ranks(part_of_launch(dealt))),
        MERGE: timed(partial(merge_over_ranks, part)),
    }
    reading = reading_ways(group, shape.kv_bytes // 2)
    return taken(group, reading | ways, rounds, ColdCaches(flush_bytes).flush)


def require_close(way: str, out: Tensor, expected: Tensor) -> None:
    difference = (out - expected).abs().max().item()
    if not difference <= TOLERANCE:
        raise ArithmeticError(f"{way}, attention differs by {difference:.1e} from one rank's")


# The engine -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """All sequences of a batch decode in every step."""

    config: LlamaConfig
    batch: int
    context: int
    rounds: int

    @property
    def max_tokens(self) -> int:
        return self.rounds + 4  # of the prompt; not counted; under the Wire; and none is finished

    @property
    def num_blocks(self) -> int:
        return 1 + self.batch * -(-(self.context + self.max_tokens) // BLOCK_SIZE)

    def prepared_engine(self, model: object, runner: Runner) -> Engine:
        """An engine whose sequences all decode next."""
        engine = Engine(
            model,
            num_blocks=self.num_blocks,
            block_size=BLOCK_SIZE,
            prefix_caching=False,
            make_runner=lambda *_: NoModel(self.config.vocab_size),
            token_budget=self.batch * self.context,
            max_num_seqs=self.batch,
        )
        for first in range(self.batch):
            engine.add([first] * self.context, SamplingParams(max_tokens=self.max_tokens))
        engine.step()  # the prompts: K and V of these are random numbers, for time's sake
        engine.runner = runner
        return engine


def fill_cache(runner: Runner, kv_heads: range, num_kv_heads: int) -> None:
    """Random K and V, of which the heads are the same numbers on every rank."""
    generator = torch.Generator().manual_seed(0)
    for cache in (*runner.cache.k, *runner.cache.v):
        num_blocks, _, *of_a_head = cache.shape
        whole = torch.randn(num_blocks, num_kv_heads, *of_a_head, generator=generator)
        cache.copy_(whole[:, kv_heads.start : kv_heads.stop])


def step(engine: Engine) -> None:
    if error := engine.step().error:
        raise ArithmeticError(error)


def together(engine: Engine | None, runner: ParallelRunner) -> float:
    """A step on both ranks; rank 0 has the engine, and its time is that of the step."""
    if engine is None:
        runner.follow()
        return idle()
    milliseconds = host_milliseconds(partial(step, engine))
    runner.stop()
    return milliseconds


def collectives_of(engine: Engine | None, runner: ParallelRunner) -> dict[str, int]:
    """How many of each kind a step on both ranks has."""
    if engine is None:
        runner.follow()
        return {}
    with Wire() as wire:
        step(engine)
    runner.stop()
    return wire.counts()


def measure_engine(
    group: Group, job: Job, read_bytes: int
) -> tuple[Times, dict[str, int], list[list[int]]]:
    """Steps of the engine on one rank, and on both by heads.

    read_bytes  that each rank reads in the same rounds
    returns     times; how many collectives of each kind a step has; tokens that were generated

    Raises ArithmeticError if a step fails, or both generate other tokens than one rank does.
    """
    torch.manual_seed(0)
    config = job.config
    model = Llama(config).requires_grad_(False)
    ways = reading_ways(group, read_bytes)
    ways[ONE] = idle
    engines = []
    if group.rank == 0:
        runner = Runner(copy.deepcopy(model), "cpu", job.num_blocks, BLOCK_SIZE)
        fill_cache(runner, range(config.num_kv_heads), config.num_kv_heads)
        engines.append(job.prepared_engine(runner.model, runner))
        ways[ONE] = timed(partial(step, engines[0]))
    share = shard_heads(model, group.mesh)
    shared = ParallelRunner(share, "cpu", job.num_blocks, BLOCK_SIZE, group)
    fill_cache(shared, share.config.kv_heads, config.num_kv_heads)
    if group.rank == 0:
        engines.append(job.prepared_engine(share, shared))
    ways[TWO] = partial(together, engines[1] if engines else None, shared)
    times = taken(group, ways, job.rounds)
    collectives = collectives_of(engines[1] if engines else None, shared)
    tokens = [tokens_of(engine) for engine in engines]
    if tokens and tokens[0] != [each[: job.rounds + 2] for each in tokens[1]]:
        raise ArithmeticError("two ranks generated other tokens than one")
    return times, collectives, tokens[0] if tokens else []


def tokens_of(engine: Engine) -> list[list[int]]:
    return [sequence.generated for sequence in engine.scheduler.running]
