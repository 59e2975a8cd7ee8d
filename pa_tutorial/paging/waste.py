"""What reserving memory wastes: a server in slots, with contiguous reservations or with blocks.

A slot holds K and V of one token. Every slot of the pool is of one kind at each step:

    TOKENS    holds a token
    RESERVED  held by a request that will store a later token here
    INTERNAL  held by a request that will end before it gets here
    EXTERNAL  free; the free slots are enough for the next request together, but no gap is
    FREE      free otherwise
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

import numpy as np

from pa_tutorial.arguments import real_number, require, require_type, whole_number
from pa_tutorial.paging.reservations import Blocks, Contiguous, Request

NOBODY = -1


class Kind(IntEnum):
    TOKENS = 0
    RESERVED = 1
    INTERNAL = 2
    EXTERNAL = 3
    FREE = 4


@dataclass(frozen=True)
class MemoryMap:
    """What every slot is used for at one step.

    kinds  [num_slots]  Kind
    owner  [num_slots]  the number of the request that holds the slot, or NOBODY (-1)
    """

    kinds: np.ndarray
    owner: np.ndarray


class Server:
    """Continuous batching: every step, each running request stores one token.

    All requests wait from the start, first come first served, and none overtakes another.
    A step:
    1. requests that have all their tokens leave;
    2. each running request stores one more token. If there is no room for it, the youngest
       running request frees all its memory and waits again, at the front. It keeps its tokens
       as text and stores them all again later (vLLM calls this recomputation);
    3. waiting requests are admitted while there is room. An admitted request stores its prompt
       and one token at once.

    The last token counts as stored too; a real engine stops one token earlier.

    Raises ValueError if there are no requests, or one that this memory can never hold.
    """

    def __init__(self, requests: Sequence[Request], memory: Contiguous | Blocks) -> None:
        require_type(isinstance(requests, Sequence), "requests", requests, "a list of Requests")
        require_type(isinstance(memory, Contiguous | Blocks), "memory", memory, "a pool of slots")
        require(len(requests) > 0, "requests", "empty", "at least one Request")
        self.requests, self.memory = tuple(requests), memory
        for number, request in enumerate(requests):
            require_type(isinstance(request, Request), f"requests[{number}]", request, "a Request")
            self._require_fits(number, request)
        memory.clear()
        self.num_tokens = [request.prompt_len for request in requests]
        self.waiting = deque(range(len(requests)))
        self.running: list[int] = []  # the oldest first
        self.num_preemptions = 0
        self.num_recomputed = 0  # tokens that were thrown away and must be stored again

    @property
    def done(self) -> bool:
        return not self.waiting and all(self._is_complete(number) for number in self.running)

    def step(self) -> None:
        for number in [n for n in self.running if self._is_complete(n)]:
            self.running.remove(number)
            self.memory.release(number)
        self._store_one_token_each()
        while self.waiting and self._store_token(self.waiting[0]):
            self.running.append(self.waiting.popleft())

    def counts(self) -> list[int]:
        """Number of slots of each Kind, in the order of Kind; together they make up the pool."""
        counts = [0] * len(Kind)
        for number in self.running:
            held = len(self.memory.slots[number])
            useful = min(held, self.requests[number].final_len)
            counts[Kind.TOKENS] += self.num_tokens[number]
            counts[Kind.RESERVED] += useful - self.num_tokens[number]
            counts[Kind.INTERNAL] += held - useful
        free = self.memory.num_slots - sum(counts)
        counts[self._free_kind(free)] = free
        return counts

    def memory_map(self) -> MemoryMap:
        owner = np.full(self.memory.num_slots, NOBODY)
        kinds = np.full(self.memory.num_slots, Kind.FREE)
        for number in self.running:
            slots = np.array(self.memory.slots[number])
            owner[slots] = number
            kinds[slots] = Kind.INTERNAL
            kinds[slots[: self.requests[number].final_len]] = Kind.RESERVED
            kinds[slots[: self.num_tokens[number]]] = Kind.TOKENS
        free = owner == NOBODY
        kinds[free] = self._free_kind(int(free.sum()))
        return MemoryMap(kinds, owner)

    def _require_fits(self, number: int, request: Request) -> None:
        most = self.memory.max_len
        name = f"the length of request {number} (prompt and output)"
        require(request.final_len <= most, name, request.final_len, f"at most {most}")
        needed, most = self.memory.num_needed(request, most), self.memory.num_usable
        name = f"the number of slots for request {number}"
        require(needed <= most, name, needed, f"at most {most}, the pool")

    def _is_complete(self, number: int) -> bool:
        return self.num_tokens[number] == self.requests[number].final_len

    def _num_missing(self, number: int) -> int:
        """Slots that the request lacks for its next token."""
        needed = self.memory.num_needed(self.requests[number], self.num_tokens[number] + 1)
        return needed - len(self.memory.slots.get(number, ()))

    def _store_token(self, number: int) -> bool:
        """Store the next token. If there is no room, do nothing and return False."""
        missing = self._num_missing(number)
        if missing > 0:
            if not self.memory.has_room(missing):
                return False
            self.memory.take(number, missing)
        self.num_tokens[number] += 1
        return True

    def _store_one_token_each(self) -> None:
        """The oldest request first; if there is no room, the youngest returns to the queue."""
        position = 0
        while position < len(self.running):
            if self._store_token(self.running[position]):
                position += 1
            else:
                youngest = self.running.pop()
                self.memory.release(youngest)
                self.waiting.appendleft(youngest)
                self.num_preemptions += 1
                self.num_recomputed += self.num_tokens[youngest]

    def _free_kind(self, num_free: int) -> Kind:
        if not self.waiting:
            return Kind.FREE
        missing = self._num_missing(self.waiting[0])
        blocked = missing <= num_free and not self.memory.has_room(missing)
        return Kind.EXTERNAL if blocked else Kind.FREE


@dataclass(frozen=True)
class Simulation:
    """A whole run, step by step. Means are over the steps at which a request waits, because
    otherwise unused memory costs nothing. (ValueError if no request ever waits.)

    counts           [num_steps, 5]  slots of each Kind
    num_running      [num_steps]
    num_waiting      [num_steps]
    num_preemptions  how often a request had to free its memory
    num_recomputed   tokens that were in this memory and had to be stored again
    """

    counts: np.ndarray
    num_running: np.ndarray
    num_waiting: np.ndarray
    num_preemptions: int
    num_recomputed: int

    @property
    def num_steps(self) -> int:
        return len(self.counts)

    @property
    def crowded(self) -> np.ndarray:
        """[num_steps] bool: a request waits."""
        waits = self.num_waiting > 0
        allowed = "at least 1: give more requests, or a smaller pool"
        require(bool(waits.any()), "the number of steps at which a request waits", 0, allowed)
        return waits

    @property
    def shares(self) -> dict[Kind, float]:
        """The mean share of each kind in the pool; the shares add up to 1."""
        mean = self.counts[self.crowded].mean(axis=0) / self.counts[0].sum()
        return dict(zip(Kind, mean.tolist(), strict=True))

    @property
    def mean_running(self) -> float:
        """The average number of requests that run at once."""
        return float(self.num_running[self.crowded].mean())


def simulate(requests: Sequence[Request], memory: Contiguous | Blocks) -> Simulation:
    """Serve all requests from this memory, which is cleared first. Raises as Server does."""
    server = Server(requests, memory)
    rows = []
    while not server.done:
        server.step()
        rows.append((*server.counts(), len(server.running), len(server.waiting)))
    table = np.array(rows)
    counts, num_running, num_waiting = table[:, : len(Kind)], table[:, -2], table[:, -1]
    return Simulation(
        counts, num_running, num_waiting, server.num_preemptions, server.num_recomputed
    )


def memory_map_at(step: int, requests: Sequence[Request], memory: Contiguous | Blocks) -> MemoryMap:
    """The memory after that many steps, or after the last one if there are fewer."""
    step = whole_number("step", step, least=1)
    server = Server(requests, memory)
    for _ in range(step):
        if server.done:
            break
        server.step()
    return server.memory_map()


def bytes_per_block(
    num_layers: int, block_size: int, num_kv_heads: int, head_size: int, itemsize: int
) -> int:
    """Bytes of one block in all layers together: K and V of block_size tokens.

    itemsize  bytes per element of the cache

    Raises TypeError or ValueError for anything but whole numbers of at least 1.
    """
    return 2 * prod(whole_number(name, value, least=1) for name, value in locals().items())


def num_available_blocks(
    total_bytes: int, utilization: float, bytes_in_use: int, bytes_per_block: int
) -> int:
    """How many blocks fit next to the model.

    total_bytes      memory of the GPU
    utilization      the share of it that may be used; vLLM's default is 0.9
    bytes_in_use     what weights and activations need at their peak
    bytes_per_block  for all layers together

    Raises TypeError or ValueError if an argument has the wrong type or is out of range, or if no
    block fits.
    Source: vLLM, Worker.determine_num_available_blocks in vllm/worker/worker.py.
    """
    total_bytes = whole_number("total_bytes", total_bytes, least=1)
    utilization = real_number("utilization", utilization)
    require(0 < utilization <= 1, "utilization", utilization, "above 0 and at most 1")
    bytes_in_use = whole_number("bytes_in_use", bytes_in_use, least=0)
    bytes_per_block = whole_number("bytes_per_block", bytes_per_block, least=1)
    left = total_bytes * utilization - bytes_in_use
    num_blocks = int(left // bytes_per_block)
    allowed = f"at least {bytes_per_block:,}, one block: raise utilization or use a smaller model"
    require(num_blocks >= 1, "the memory left for blocks", f"{left:,.0f} bytes", allowed)
    return num_blocks
