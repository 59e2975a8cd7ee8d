"""Random operations on the memory manager, beside a model that keeps plain lists of tokens.

Pools are small and tokens few, so that prefix hits, hash collisions, eviction and exhaustion
happen all the time. Memory is a plain list a block: one entry a slot.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest

from pa_tutorial.paging.allocator import NULL_BLOCK, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.layouts import PAD_SLOT
from pa_tutorial.paging.pages import Appended
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from tests.paging.block_helpers import require_balanced, snapshot

hypothesis = pytest.importorskip(
    "hypothesis", reason="hypothesis draws the tests: an extra for tests"
)
stateful = pytest.importorskip("hypothesis.stateful")
st = hypothesis.strategies

MOST_SEQUENCES = 6


def few_hashes(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    """Three values in all: different contents collide most of the time, whatever their extra."""
    return ((previous or 0) + sum(tokens) + len(tokens)) % 3


CONFIGS = {
    "prefix_caching": PrefixCachingAllocator,
    "colliding_hashes": partial(PrefixCachingAllocator, hash_function=few_hashes),
    "no_prefix_caching": BlockAllocator,
}
STEPS = (("prefix_caching", 2_000), *((name, 7_000) for name in CONFIGS))
HOURS = [pytest.param(name, 350_000, marks=pytest.mark.hours) for name in CONFIGS]


@dataclass
class Sequence:
    """A table, and what must be read through it."""

    table: BlockTable
    tokens: list[int]
    gone: int = 0  # tokens that slid out


def prefixes(sequence: Sequence) -> list[tuple[int, ...]]:
    """What K and V of each token depend on: extra, and all tokens up to it."""
    return [
        (sequence.table.extra, *sequence.tokens[: end + 1]) for end in range(len(sequence.tokens))
    ]


FEW_TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
WHICH = st.integers(0, 11)


class BlockMachine(stateful.RuleBasedStateMachine):
    make: ClassVar[Callable[[int], BlockAllocator]]  # a pool of so many blocks; in a subclass

    @stateful.initialize(
        device_blocks=st.integers(5, 12),
        host_blocks=st.integers(3, 8),
        block_size=st.integers(1, 4),
    )
    def set_up(self, device_blocks: int, host_blocks: int, block_size: int) -> None:
        make = type(self).make
        self.device, self.host = make(device_blocks), make(host_blocks)
        self.block_size = block_size
        # of a pool's block: what K and V of each slot depend on
        self.memory = defaultdict(lambda: [None] * block_size)
        self.sequences: list[Sequence] = []
        self.freed: list[Sequence] = []

    # The operations

    @stateful.precondition(lambda self: len(self.sequences) < MOST_SEQUENCES)
    @stateful.rule(
        tokens=FEW_TOKENS,
        extra=st.sampled_from([0, 0, 0, 1]),
        keep=st.integers(0, 12),
        which=WHICH,
    )
    def start(self, tokens: list[int], extra: int, keep: int, which: int) -> None:
        known = self.sequences + self.freed
        if keep and known:  # like another
            other = known[which % len(known)]
            tokens, extra = other.tokens[:keep] + tokens, other.table.extra
        sequence = Sequence(BlockTable(self.device, self.block_size, extra), [])
        if self.grow(sequence, tokens):
            self.sequences.append(sequence)

    @stateful.precondition(lambda self: self.sequences)
    @stateful.rule(which=WHICH, tokens=FEW_TOKENS)
    def append(self, which: int, tokens: list[int]) -> None:
        self.grow(self.pick(which), tokens)

    @stateful.precondition(lambda self: 0 < len(self.sequences) < MOST_SEQUENCES)
    @stateful.rule(which=WHICH, tokens=st.lists(st.integers(0, 2), max_size=3))
    def fork_and_write(self, which: int, tokens: list[int]) -> None:
        one = self.pick(which)
        pool = one.table.allocator
        free = pool.num_free
        fork = Sequence(one.table.fork(), one.tokens.copy(), one.gone)
        assert pool.num_free == free, "a fork takes no block"
        self.sequences.append(fork)
        self.grow(fork, tokens)

    @stateful.precondition(lambda self: self.sequences)
    @stateful.rule(which=WHICH)
    def free(self, which: int) -> None:
        sequence = self.sequences.pop(which % len(self.sequences))
        sequence.table.free()
        self.freed = [*self.freed[-3:], sequence]

    @stateful.precondition(lambda self: self.sequences)
    @stateful.rule(which=WHICH, window=st.integers(1, 9))
    def slide(self, which: int, window: int) -> None:
        sequence = self.pick(which)
        sequence.table.slide(window)
        blocks_outside = max(0, len(sequence.tokens) - window) // self.block_size
        sequence.gone = max(sequence.gone, blocks_outside * self.block_size)

    @stateful.precondition(lambda self: any(not sequence.gone for sequence in self.sequences))
    @stateful.rule(which=WHICH)
    def swap(self, which: int) -> None:
        whole = [sequence for sequence in self.sequences if not sequence.gone]
        table = whole[which % len(whole)].table
        source = table.allocator
        target = self.host if source is self.device else self.device
        needed = -(-table.num_tokens // self.block_size)
        pairs = self.attempt(lambda: table.move_to(target), needed > target.num_free)
        for old, new in pairs or ():
            assert target.ref_counts[new] == 1, "a shared block is written"
            self.memory[target, new] = self.memory[source, old].copy()

    # What they are made of

    def pick(self, which: int) -> Sequence:
        return self.sequences[which % len(self.sequences)]

    def state(self) -> list[dict[str, object]]:
        tables = [sequence.table for sequence in self.sequences + self.freed]
        return snapshot(self.device, self.host, *tables)

    def attempt(self, operation: Callable[[], object], may_be_refused: bool) -> object:
        """The result; None if it was refused for want of blocks, which must change nothing."""
        before = self.state()
        try:
            return operation()
        except OutOfBlocks:
            assert self.state() == before, "a refused operation changed something"
            assert may_be_refused, "refused although enough blocks were free"
            return None

    def grow(self, sequence: Sequence, tokens: list[int]) -> bool:
        """Append and write, as a runner does it, and as look_up says; False if there was no
        room."""
        table, pool = sequence.table, sequence.table.allocator
        total = -(-(table.num_tokens + len(tokens)) // self.block_size)
        most = total - len(table.blocks) + (len(tokens) > 0 and table.must_copy)
        before, free = self.state(), pool.num_free
        prospect = table.look_up(tokens)
        assert self.state() == before, "looking changed something"
        assert prospect.num_blocks <= most
        appended = self.attempt(lambda: table.append(tokens), prospect.num_blocks > free)
        if appended is None:
            return False
        assert prospect.num_blocks == free - pool.num_free
        assert prospect.num_cached == appended.num_cached
        self.write(sequence, tokens, appended)
        return True

    def write(self, sequence: Sequence, tokens: list[int], appended: Appended) -> None:
        """The copies in their order, then the new tokens where their slots say."""
        pool, first = sequence.table.allocator, len(sequence.tokens)
        for old, new in appended.copies:
            assert pool.ref_counts[new] == 1, "a shared block is written"
            self.memory[pool, new] = self.memory[pool, old].copy()
        sequence.tokens += tokens
        for prefix, slot in zip(prefixes(sequence)[first:], appended.slots, strict=True):
            if slot != PAD_SLOT:
                block, offset = divmod(slot, self.block_size)
                assert pool.ref_counts[block] == 1, "a shared block is written"
                self.memory[pool, block][offset] = prefix
        assert sequence.table.token_ids == sequence.tokens

    # What holds after every step

    @stateful.invariant()
    def each_sequence_reads_its_own_tokens(self) -> None:
        for sequence in self.sequences:
            table, tokens, size = sequence.table, sequence.tokens, self.block_size
            assert len(table.blocks) == -(-len(tokens) // size)
            assert [block == NULL_BLOCK for block in table.blocks] == [
                index * size < sequence.gone for index in range(len(table.blocks))
            ]
            read = [e for block in table.blocks for e in self.memory[table.allocator, block]]
            assert read[sequence.gone : len(tokens)] == prefixes(sequence)[sequence.gone :]

    @stateful.invariant()
    def every_block_is_counted_once(self) -> None:
        for pool in (self.device, self.host):
            tables = [sequence.table for sequence in self.sequences]
            require_balanced(pool, [table for table in tables if table.allocator is pool])


@pytest.mark.rest(keep=["prefix_caching-2000"])
@pytest.mark.parametrize(("name", "steps"), [*STEPS, *HOURS])
def test_random_operations_read_what_plain_lists_hold(name: str, steps: int) -> None:
    """About so many operations: some runs end early."""
    settings = hypothesis.settings(
        max_examples=steps // 30,
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    machine = type("Machine", (BlockMachine,), {"make": staticmethod(CONFIGS[name])})
    stateful.run_state_machine_as_test(machine, settings=settings)
