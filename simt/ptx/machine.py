"""All threads of several thread blocks side by side: a register is an array, one item per thread.

Each thread has a program counter, the number of its next instruction. The lowest is executed
first, by all threads that are there, so that threads which took different ways meet again where
the ways join. A basic block is translated once, to Python functions, one per instruction.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from simt.gpus import WARP_SIZE
from simt.lanes import Lanes
from simt.ptx.batches import Doubt, between_blocks, between_threads
from simt.ptx.memory import Access, Copies, Space
from simt.ptx.parsing import Instruction, Kernel, PtxError, round_up
from simt.ptx.registers import Registers
from simt.races import PLACE, PLACES, THREADS, Ordering, record
from simt.tracebacks import ShortInNotebooks

Size = tuple[int, int, int]
DONE = np.iinfo(np.int64).max  # the counter of a thread that has ended
WAITING = DONE - 1  # and of one that waits at a barrier
MEETING = DONE - 2  # stands for that of a lane that waits for others of its warp
ASIDE = DONE - 3  # and for that of one whose loop can't end before others have gone on
# Loads and stores with these are ordered as atomics are: several at once are no race.
STRONG = {"volatile", "relaxed", "acquire", "release"}
# Words of an instruction that has a fence before its access, or after it.
RELEASES, ACQUIRES = {"release", "acq_rel"}, {"acquire", "acq_rel"}
FENCES = ("membar", "fence")
ENDS_A_BLOCK = ("bra", "ret", "exit", "bar", "barrier", "trap")
# Each is a basic block of its own: lanes may wait before it.
MEETS = ("shfl", "vote", "match", "redux", "bar", "barrier", "mma", "ldmatrix", "stmatrix")
WHOLE_WARPS = ("mma", "ldmatrix", "stmatrix")
EVERY_LANE = np.uint32(0xFFFFFFFF)
BATCH = 4096  # threads side by side, at most, where races are looked for: see batches.py


class PtxFault(ShortInNotebooks, RuntimeError):
    """A mistake in a kernel, found while it ran; the message says what, where and by whom.

    check  "memory", "init", "race" or "sync"
    """

    def __init__(self, check: str, what: str, instruction: Instruction) -> None:
        super().__init__(f"{check}: {what}\n  {instruction}")
        self.check, self.instruction = check, instruction


def is_fence(one: Instruction) -> bool:
    return one.opcode in FENCES or bool((RELEASES | ACQUIRES) & set(one.words))


Step = Callable[[Lanes], None]  # of the threads that execute an instruction


class Machine:
    """Runs the thread blocks of a launch, some of them side by side at a time.

    memory      space -> its bytes
    log         what the accesses did, in order
    num_issued  first instruction of a basic block -> warps that executed it
    copies      what cp.async hasn't copied yet
    settled     number of accesses in the log that have been looked at for races, see batches.py
    ordering    what the barriers of a thread block order; None: races aren't looked for
    next        [num_threads] number of each thread's next instruction, or DONE, or WAITING
    resume      [num_threads] where a thread goes on after the barrier at which it waits
    at_opening  instruction behind a barrier -> what happens when the barrier opens
    at_barriers for each opening of barriers: which thread blocks waited, and their shared memory
    meeting     [num_threads] whether a thread waits for other lanes that its next instruction names
    some_meet   whether any does
    aside       [num_threads] whether a thread goes on only when nobody else can
    some_aside  whether any may
    goes_on     whether those that wait so go on without these lanes, because nobody else can
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: Size,
        block: Size,
        entry: Space,
        global_memory: Space,
        checks: Sequence[str],
        max_steps: int,
        shared_bytes: int = 0,
        keeps_shared: bool = False,
        batched: bool = False,
    ) -> None:
        """batched  run thread blocks side by side even if races are looked for"""
        self.kernel, self.grid, self.block, self.batched = kernel, grid, block, batched
        self.checks, self.max_steps, self.shared_bytes = checks, max_steps, shared_bytes
        if "race" in checks and len(kernel.instructions) > PLACES:
            what = f"{len(kernel.instructions):,} instructions; a race check takes {PLACES:,}"
            raise PtxError(f"{kernel.name} has {what}")
        per_block = int(np.prod(block))
        self.per_block = round_up(per_block, WARP_SIZE)  # with the idle lanes
        self.num_blocks = self._num_blocks(batched)
        self.num_threads = self.per_block * self.num_blocks
        number = np.arange(self.num_threads)
        self.thread, self.lane = number % self.per_block, number % WARP_SIZE
        self.everybody = Lanes(np.ones(self.num_threads, bool))
        size = kernel.num_bytes["shared"]
        if kernel.dynamic_offset is not None:
            size = kernel.dynamic_offset + shared_bytes
        self.memory = {
            "global": global_memory,
            "entry": entry,
            "shared": Space("shared", size, self.num_blocks, number // self.per_block),
            "local": Space("local", kernel.num_bytes["local"], self.num_threads, number),
            "param": Space("param", kernel.num_bytes["param"], self.num_threads, number),
        }
        self.registers = Registers(kernel, self.ends, self.num_threads)
        self.log: list[Access] = []
        self.num_issued: Counter[int] = Counter()
        self.ordering: Ordering | None = None
        self.keeps_shared = keeps_shared
        self.at_barriers: list[tuple[np.ndarray, np.ndarray]] = []
        self.steps: dict[int, list[Step]] = {}

    def _num_blocks(self, batched: bool) -> int:
        """How many thread blocks run side by side."""
        total = int(np.prod(self.grid))
        if "race" not in self.checks:
            return total
        most = max(1, BATCH // self.per_block) if batched else 1
        return -(-total // -(-total // most))  # as many in each batch

    def run(
        self, translate: Callable[[Instruction], Step], look: Callable[[int, int], None]
    ) -> None:
        """Run all thread blocks. Raises PtxFault for the first mistake, or Doubt.

        translate  makes the step of an instruction
        look       looks for loops that never end, see endless.py
        """
        interval, births = 1, [] if any(map(is_fence, self.kernel.instructions)) else None
        for first in range(0, int(np.prod(self.grid)), self.num_blocks):
            self._begin(first)
            if "race" in self.checks and not self.batched:
                self.ordering = Ordering(self.per_block, interval, births)
            with np.errstate(all="ignore"):
                self._run_blocks(translate, look)
            interval = self.ordering.interval + 1 if self.ordering else interval
            if self.batched:
                self._settle()
        self.steps.clear()  # they refer to the machine: its memory is free as soon as it is
        if self.batched and between_blocks(self.log):
            raise Doubt

    def _begin(self, first: int) -> None:
        """Put the thread blocks from this number on at the start."""
        self.first, self.settled = first, len(self.log)
        self.block_of = first + np.arange(self.num_threads) // self.per_block
        self.exists = (self.thread < np.prod(self.block)) & (self.block_of < np.prod(self.grid))
        self.next = np.where(self.exists, 0, DONE)
        self.resume = np.zeros(self.num_threads, np.int64)
        self.meeting, self.goes_on = np.zeros(self.num_threads, bool), False
        self.num_ended = np.count_nonzero(self.next == DONE)
        self.some_meet = False
        self.set_aside(np.zeros(self.num_threads, bool))
        self.copies, self.at_opening = Copies(self.num_threads), dict[int, Step]()
        self.special = self._special()
        for space in ("shared", "local", "param"):
            self.memory[space].clear()
        self.registers.clear()

    def _settle(self) -> None:
        """The threads of a block meet. Raises Doubt if what they did since they last met may be a
        race."""
        if between_threads(self.log[self.settled :]):
            raise Doubt
        self.settled = len(self.log)

    def _special(self) -> dict[str, np.ndarray | int]:
        found: dict[str, np.ndarray | int] = {
            "%laneid": self.lane,
            "%warpid": self.thread // WARP_SIZE,
            "%dynamic_smem_size": self.shared_bytes,
            "WARP_SZ": WARP_SIZE,
        }
        for sizes, numbers, shape, number in (
            ("ntid", "tid", self.block, self.thread),
            ("nctaid", "ctaid", self.grid, self.block_of),
        ):
            for axis, letter in enumerate("xyz"):
                before = int(np.prod(shape[:axis]))
                found[f"%{sizes}.{letter}"] = shape[axis]
                found[f"%{numbers}.{letter}"] = number // before % shape[axis]
        bit = np.uint32(1) << self.lane.astype(np.uint32)
        below, upto = bit - 1, 2 * bit - 1
        masks = {"eq": bit, "lt": below, "le": upto, "gt": ~upto, "ge": ~below}
        return found | {f"%lanemask_{name}": mask for name, mask in masks.items()}

    # Running ----------------------------------------------------------------------------------

    def _run_blocks(
        self, translate: Callable[[Instruction], Step], look: Callable[[int, int], None]
    ) -> None:
        for number in range(self.max_steps):
            at = self._lowest()
            if at == DONE:
                return
            if at == ASIDE:
                self.set_aside(np.zeros_like(self.aside))
            elif at == MEETING:
                self._go_on()
            elif at == WAITING:
                self.open_barriers()
            else:
                last = at
                look(number, at)
                if not self.some_aside or self._lowest() == at:
                    self._execute(at, translate)
        what = f"still running after {self.max_steps:,} basic blocks"
        raise PtxFault("sync", what, self.kernel.instructions[last])

    def _lowest(self) -> int:
        counters = np.where(self.meeting, MEETING, self.next) if self.some_meet else self.next
        if self.some_aside:
            counters = np.where(self.aside, ASIDE, counters)
        return int(counters.min())

    def set_aside(self, threads: np.ndarray) -> None:
        """They, and no others, go on when nobody else can. [num_threads] bool"""
        self.aside, self.some_aside = threads, threads.any()

    def _execute(self, at: int, translate: Callable[[Instruction], Step]) -> None:
        """The basic block that begins there, by all threads that are there."""
        instructions, end = self.kernel.instructions, self.ends[at]
        if at not in self.steps:
            self.steps[at] = list(map(translate, instructions[at:end]))
        here = self.next == at
        lanes = self.lanes(here & ~self.aside if self.some_aside else here)
        if self.some_meet:
            self.meeting[lanes.flags] = False
            self.some_meet = self.meeting.any()
        self.num_issued[at] += self.num_warps(lanes)
        self.go(lanes, end if end < len(instructions) else DONE)
        for step, one in zip(self.steps[at], instructions[at:end], strict=True):
            try:
                step(lanes)
            except PtxError:
                raise
            except (TypeError, ValueError, IndexError, KeyError) as error:
                raise one.unknown() from error  # it has operands that it can't have
        self.goes_on = False

    def _go_on(self) -> None:
        """Some lanes wait for others of their warp, and nobody else can go on."""
        num_ended = np.count_nonzero(self.next == DONE)
        if num_ended != self.num_ended:  # perhaps those that were waited for
            self.meeting[:], self.some_meet, self.num_ended = False, False, num_ended
            return
        if self.batched:
            raise Doubt
        if "sync" in self.checks:
            raise self._missing()
        self.meeting[:], self.some_meet, self.goes_on = False, False, True

    @cached_property
    def ends(self) -> dict[int, int]:
        """First instruction of each basic block -> the first one behind it."""
        instructions = self.kernel.instructions
        starts = {0, *self.kernel.labels.values()}
        starts |= {n + 1 for n, one in enumerate(instructions) if one.opcode in ENDS_A_BLOCK}
        starts |= {
            n + k for n, one in enumerate(instructions) if one.opcode in MEETS for k in (0, 1)
        }
        ordered = sorted(start for start in starts if start < len(instructions))
        return dict(zip(ordered, [*ordered[1:], len(instructions)], strict=True))

    def lanes(self, flags: np.ndarray) -> Lanes:
        count = np.count_nonzero(flags)
        return self.everybody if count == len(flags) else Lanes(flags, count)

    def among(self, lanes: Lanes, condition: np.ndarray) -> Lanes:
        """Those for which it holds."""
        flags = lanes.flags & condition
        count = np.count_nonzero(flags)
        return lanes if count == lanes.count else Lanes(flags, count)

    def num_warps(self, lanes: Lanes) -> int:
        """How many warps have a lane among them."""
        if lanes.everyone:
            return self.num_threads // WARP_SIZE
        return int(np.count_nonzero(self.warps(lanes.flags).any(axis=1)))

    def go(self, lanes: Lanes, there: int) -> None:
        """Their next instruction is this one."""
        if lanes.everyone:
            self.next.fill(there)
        else:
            self.next[lanes.flags] = there

    def warps(self, values: np.ndarray) -> np.ndarray:
        """[num_warps, 32] of a value per thread."""
        return values.reshape(-1, WARP_SIZE)

    # Warps ------------------------------------------------------------------------------------

    def ballot(self, holds: np.ndarray) -> np.ndarray:
        """[num_threads] uint32: which lanes of its warp it holds for, as a mask."""
        return np.repeat(np.packbits(holds, bitorder="little").view(np.uint32), WARP_SIZE)

    def meet(self, one: Instruction, members: np.ndarray, lanes: Lanes) -> Lanes:
        """The lanes whose masks name none that isn't here. The others wait before the instruction
        until those arrive."""
        if "sync" in self.checks and np.any(members != EVERY_LANE):
            self._require_members(one, np.broadcast_to(members, self.num_threads), lanes.flags)
        if self.goes_on or lanes.everyone:
            return lanes
        # A mask may name lanes that have ended, except where all lanes hold a part of a matrix.
        others = self.exists if one.opcode in WHOLE_WARPS else self.next != DONE
        waits = lanes.flags & (members & self.ballot(others & ~lanes.flags) != 0)
        if not waits.any():
            return lanes
        self.next[waits], self.meeting[waits], self.some_meet = one.number, True, True
        return self.lanes(lanes.flags & ~waits)

    def _require_members(self, one: Instruction, members: np.ndarray, lanes: np.ndarray) -> None:
        """Every lane is in its own mask, and those here that it names have the same mask."""
        stranger = lanes & (members >> self.lane.astype(np.uint32) & 1 == 0)
        if stranger.any():
            what = f"{self.name(int(np.argmax(stranger)))} isn't in the mask that it names"
            raise PtxFault("sync", what, one)
        masks, here = self.warps(members), self.warps(lanes)
        if ((masks == masks[:, :1]) | ~here).all():
            return
        named = masks[:, :, None] >> np.arange(WARP_SIZE, dtype=np.uint32) & 1 == 1
        differs = masks[:, :, None] != masks[:, None, :]
        differs &= named & here[:, :, None] & here[:, None, :]
        if differs.any():
            warp, lane, other = np.argwhere(differs)[0]
            first = warp * WARP_SIZE
            what = f"{self.name(first + lane)} and {self.name(first + other)} have different masks"
            raise PtxFault("sync", what, one)

    def _missing(self) -> PtxFault:
        """Nobody can go on, and some lanes wait for others of their warp."""
        waits = int(np.argmax(self.meeting))
        warp = slice(waits // WARP_SIZE * WARP_SIZE, (waits // WARP_SIZE + 1) * WARP_SIZE)
        one = self.kernel.instructions[self.next[waits]]
        others = self.exists if one.opcode in WHOLE_WARPS else self.next != DONE
        away = warp.start + int(np.argmax(others[warp] & ~self.meeting[warp]))
        what = f"{self.name(away)} isn't here, but its lane is in the mask"
        return PtxFault("sync", what, one)

    # Barriers ---------------------------------------------------------------------------------

    def wait(self, barrier: Instruction, lanes: Lanes, then: Step | None = None) -> None:
        """then  a step for the lanes when the barrier opens"""
        if then:
            self.at_opening[barrier.number + 1] = then
        self.resume[lanes.flags] = barrier.number + 1
        self.go(lanes, WAITING)

    def open_barriers(self) -> bool:
        """Of the thread blocks whose threads all wait or have ended. Those of one block must be at
        the same barrier, and none may have ended. False: there is no such block."""
        waiting = self.next == WAITING
        ready = ((self.next == DONE) | waiting).reshape(-1, self.per_block).all(axis=1)
        waiting &= np.repeat(ready, self.per_block)
        if not waiting.any():
            return False
        resume = np.where(waiting, self.resume, DONE).reshape(-1, self.per_block)
        exists = self.exists.reshape(resume.shape)
        lowest = resume.min(axis=1, keepdims=True)
        waits = lowest != DONE
        away = exists & waits & (resume != lowest)
        if "sync" in self.checks and away.any():
            first = int(np.flatnonzero(away.reshape(-1))[0])
            other = int(resume.reshape(-1)[first])
            at = self.kernel.instructions[int(lowest[first // self.per_block, 0]) - 1]
            does = "has ended"
            if other != DONE:
                does = f"waits at line {self.kernel.instructions[other - 1].line}"
            what = f"a barrier that not all threads reach: {self.name(first)} {does}"
            raise PtxFault("sync", what, at)
        if self.keeps_shared:
            shared = self.memory["shared"].data.reshape(self.num_blocks, -1)
            self.at_barriers.append((waits[:, 0], shared.copy()))
        for number, then in self.at_opening.items():
            here = self.lanes(waiting & (self.resume == number))
            if here.count:
                then(here)
        self.next[waiting] = self.resume[waiting]
        if self.ordering is not None:
            self.ordering.barrier()
        if self.batched:
            self._settle()
        return True

    def fence(self, one: Instruction, lanes: Lanes) -> None:
        if self.ordering is not None:
            scope = "block" if "cta" in one.words else "grid"
            self.ordering.fence(lanes.numbers, scope)

    # Memory -----------------------------------------------------------------------------------

    def wait_for_copies(self, most: int | None, lanes: Lanes) -> None:
        """All but the last `most` groups of the lanes' copies have arrived; None: all copies."""
        shared = self.memory["shared"]
        for one, threads, _, places in self.copies.arrived(lanes.flags, most):
            shared.written[places] = True
            if self.ordering is not None:  # only a barrier after the wait orders the copy
                first, num_bytes = places[:, 0], places.shape[1]
                self._look_for_races(one, "write", shared, first, num_bytes, threads)

    def locate(
        self, one: Instruction, kind: str, space: str, addresses: np.ndarray, num_bytes: int,
        lanes: Lanes,
    ) -> tuple[Space, np.ndarray]:  # fmt: skip
        """Check an access of the active lanes, and note it.

        addresses  [active] within the space
        num_bytes  that a lane accesses
        returns    the space, and for each active lane the place of its first byte in its data
        """
        memory = self.memory[space]
        if not len(addresses):
            return memory, addresses
        at = memory, one, lanes, addresses
        low, high = int(addresses.min()), int(addresses.max()) + num_bytes
        found = memory.holding(low, high)
        if found is None:
            self._require_inside(num_bytes, *at)
        if np.bitwise_or.reduce(addresses) & num_bytes - 1:
            aligned = addresses % num_bytes == 0
            self._require(aligned, "memory", f"misaligned for {num_bytes} bytes", *at)
        places = addresses
        if memory.base is not None:
            places = addresses + (memory.base if lanes.everyone else memory.base[lanes.numbers])
        if kind != "write" and "init" in self.checks and found not in memory.complete:
            self._require_written(places, num_bytes, *at)
        if self.ordering is not None and space in ("global", "shared"):
            accessed = "atomic" if STRONG & set(one.words) else kind
            if RELEASES & set(one.words):
                self.fence(one, lanes)
            self._look_for_races(one, accessed, memory, places, num_bytes, lanes.numbers)
            if ACQUIRES & set(one.words):
                self.fence(one, lanes)
        if space in ("global", "shared", "local"):  # numbers are handed over in registers
            who = lanes, self.first, self.per_block
            self.log.append(Access(one, kind, space, *who, addresses, low, high, num_bytes))
        return memory, places

    def _require_inside(
        self, num_bytes: int, memory: Space, one: Instruction, lanes: Lanes, addresses: np.ndarray
    ) -> None:
        outside = memory.outside(addresses, num_bytes)
        if outside.any():
            where = memory.where(addresses[np.argmax(outside)])
            self._require(~outside, "memory", where, memory, one, lanes, addresses)

    def _require_written(
        self, places: np.ndarray, num_bytes: int, memory: Space, one: Instruction, lanes: Lanes,
        addresses: np.ndarray,
    ) -> None:  # fmt: skip
        written, what = memory.all_written(places, num_bytes), "read, and was never written"
        if not written.all():
            missing = places[~written][:, None] + np.arange(num_bytes)
            if memory.name == "shared" and self.copies.include(missing):
                what = "read, and the thread that copies it (cp.async) hasn't waited"
            self._require(written, "init", what, memory, one, lanes, addresses)

    def _require(
        self, holds: np.ndarray, check: str, what: str, memory: Space, one: Instruction,
        lanes: Lanes, addresses: np.ndarray,
    ) -> None:  # fmt: skip
        """Raise PtxFault about the first thread for which it doesn't hold."""
        if not holds.all():
            first = int(np.argmin(holds))
            address = f"address {memory.shown(addresses[first]):#x}"
            thread = f"{self.name(lanes.numbers[first])}, {address}"
            raise PtxFault(check, f"{thread} is {what}", one)

    def name(self, thread: int) -> str:
        return f"thread {self.thread[thread]} of thread block {self.block_of[thread]}"

    def _look_for_races(
        self, one: Instruction, kind: str, memory: Space, places: np.ndarray, num_bytes: int,
        threads: np.ndarray,
    ) -> None:  # fmt: skip
        shadow = memory.shadow
        shadow.split_cells(num_bytes)
        each = num_bytes // shadow.cell
        cells = (places[:, None] // shadow.cell + np.arange(each)).reshape(-1)
        found = record(shadow, kind, cells, np.repeat(threads, each), one.number, self.ordering)
        if found is None:
            return
        _, now, before, other = found
        now, before = int(now[0]), int(before[0])
        foreign = " of an earlier thread block" if before < self.ordering.birth else ""
        what = (
            f"{self.name(now & THREADS)} does a{'n' if kind == 'atomic' else ''} {kind} where "
            f"thread {before & THREADS}{foreign} did a{'n' if other == 'atomic' else ''} {other}, "
            f"with no barrier in between:\n  {self.kernel.instructions[before >> PLACE & PLACES]}"
        )
        raise PtxFault("race", what, one)
