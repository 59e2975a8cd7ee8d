"""Requests of different lengths, and two ways to give them memory: contiguous or in blocks."""

from dataclasses import dataclass

import numpy as np

from pa_tutorial.arguments import require, require_memory, whole_number
from pa_tutorial.paging.allocator import BYTES_OF_A_BLOCK

MAX_LEN = 2048  # the longest text of OPT, the model of the paper's example
MOST_TOKENS = 2**31 - 1  # lengths are int32
BYTES_OF_A_REQUEST = 168  # of Python's memory, while many are made
POLICIES = ("max", "oracle")
# Means of ShareGPT's conversations in Kwon et al. (SOSP 2023), figure 11, rounded.
MEAN_PROMPT_LEN, MEAN_OUTPUT_LEN = 161, 338
# Ours: the standard deviation of the logarithm of a length.
SIGMA = 1.0


@dataclass(frozen=True)
class Request:
    """A prompt's length, and how many tokens the model will write (which no server can know)."""

    prompt_len: int
    output_len: int

    def __post_init__(self) -> None:
        for name in ("prompt_len", "output_len"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1))

    @property
    def final_len(self) -> int:
        return self.prompt_len + self.output_len


def checked_max_len(max_len: int) -> int:
    max_len = whole_number("max_len", max_len)
    allowed = f"at least 2, a prompt token and an output token, and at most {MOST_TOKENS:,}"
    require(2 <= max_len <= MOST_TOKENS, "max_len", max_len, allowed)
    return max_len


def long_tailed_requests(num_requests: int, seed: int, max_len: int = MAX_LEN) -> list[Request]:
    """Many short requests and a few very long ones; the same for the same seed.

    Prompt and output lengths are log-normal and independent, rounded up, with means of 161
    and 338 tokens, which the PagedAttention paper reports for ShareGPT. Our choices are this
    distribution, SIGMA = 1.0 for both, and that a text ends when it reaches max_len
    (which makes the means a little smaller).

    Raises ValueError if num_requests < 1 or max_len < 2.
    """
    num_requests = whole_number("num_requests", num_requests, least=1)
    require_memory(BYTES_OF_A_REQUEST * num_requests, num_requests=num_requests)
    seed, max_len = whole_number("seed", seed, least=0), checked_max_len(max_len)
    # The mean of a log-normal length is exp(mu + sigma²/2).
    mu = np.log([MEAN_PROMPT_LEN, MEAN_OUTPUT_LEN]) - SIGMA**2 / 2
    drawn = np.random.default_rng(seed).lognormal(mu, SIGMA, size=(num_requests, 2))
    prompt_lens = np.minimum(np.ceil(drawn[:, 0]), max_len - 1).astype(int)
    output_lens = np.minimum(np.ceil(drawn[:, 1]), max_len - prompt_lens).astype(int)
    pairs = zip(prompt_lens.tolist(), output_lens.tolist(), strict=True)
    return [Request(prompt_len, output_len) for prompt_len, output_len in pairs]


class Contiguous:
    """Contiguous slots per request, reserved when it is admitted, in the first gap that fits.

    num_slots  size of the pool
    policy     how much to reserve: "max": max_len slots;
               "oracle": exactly the final length, as if it were known
    max_len    the longest text that the server allows

    Source: two policies in Kwon et al. (SOSP 2023), section 6.1: Orca (Max), Orca (Oracle).
    """

    def __init__(self, num_slots: int, policy: str, max_len: int = MAX_LEN) -> None:
        num_slots = whole_number("num_slots", num_slots, least=1)
        is_known = isinstance(policy, str) and policy in POLICIES
        require(is_known, "policy", repr(policy), f"one of {POLICIES}")
        self.num_slots, self.policy, self.max_len = num_slots, policy, checked_max_len(max_len)
        self.num_usable = num_slots
        self.clear()

    def clear(self) -> None:
        """Release everything."""
        self.slots: dict[int, range] = {}  # request -> its slots, in the order of its tokens

    def num_needed(self, request: Request, num_tokens: int) -> int:
        """Slots that the request must hold when it has num_tokens; here always the same number."""
        return self.max_len if self.policy == "max" else request.final_len

    def has_room(self, num_slots: int) -> bool:
        return self._first_gap(num_slots) is not None

    def take(self, number: int, num_slots: int) -> None:
        """Reserve num_slots for request `number`. There must be room."""
        start = self._first_gap(num_slots)
        self.slots[number] = range(start, start + num_slots)

    def release(self, number: int) -> None:
        del self.slots[number]

    def _first_gap(self, size: int) -> int | None:
        """Where the first gap of that size starts; None if there is none."""
        start = 0
        for taken in sorted(self.slots.values(), key=lambda run: run.start):
            if start + size <= taken.start:
                return start
            start = taken.stop
        return start if start + size <= self.num_slots else None


class Blocks:
    """Blocks of block_size slots, taken one at a time when the last one is full.

    num_slots   size of the pool; a remainder smaller than a block is never used
    block_size  slots per block
    """

    def __init__(self, num_slots: int, block_size: int) -> None:
        num_slots = whole_number("num_slots", num_slots)
        block_size = whole_number("block_size", block_size, least=1)
        require(num_slots >= block_size, "num_slots", num_slots, f"at least {block_size}, a block")
        self.num_slots, self.block_size = num_slots, block_size
        require_memory(BYTES_OF_A_BLOCK * (num_slots // block_size), num_slots=num_slots)
        self.num_usable = num_slots // block_size * block_size
        self.max_len = self.num_usable
        self.clear()

    def clear(self) -> None:
        """Release everything."""
        self.slots: dict[int, list[int]] = {}  # request -> its slots, in the order of its tokens
        # The last one is taken first: block 0 at the start, later whatever was released last.
        self._free = list(range(self.num_slots // self.block_size))[::-1]

    def num_needed(self, request: Request, num_tokens: int) -> int:
        """Slots that the request must hold when it has num_tokens; its last block counts fully."""
        return -(-num_tokens // self.block_size) * self.block_size

    def has_room(self, num_slots: int) -> bool:
        return num_slots <= len(self._free) * self.block_size

    def take(self, number: int, num_slots: int) -> None:
        """Give request `number` blocks for num_slots more slots. There must be room."""
        slots = self.slots.setdefault(number, [])
        for _ in range(num_slots // self.block_size):
            first = self._free.pop() * self.block_size
            slots.extend(range(first, first + self.block_size))

    def release(self, number: int) -> None:
        slots = self.slots.pop(number)
        self._free.extend(first // self.block_size for first in slots[:: self.block_size])
