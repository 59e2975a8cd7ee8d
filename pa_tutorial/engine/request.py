"""What a user asks for, and the sequences that answer it."""

import sys
from collections.abc import Sequence as Several
from collections.abc import Set
from dataclasses import dataclass, field, replace

from pa_tutorial.arguments import real_number, require, require_bool, whole_number, whole_numbers


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens after a prompt are chosen, and when to stop.

    max_tokens   the most tokens to generate per sample
    temperature  0: always the likeliest token (greedy); 1: the model's probabilities
    top_k        choose only among the top_k likeliest tokens; 0: among all
    top_p        choose only among the likeliest tokens that together have this probability
    seed         of the random numbers: the samples of a request have different numbers, but two
                 requests with the same seed have the same ones
    num_samples  how many answers to the same prompt
    stop_tokens  token ids that end the answer, besides the model's end token; they are kept
    ignore_eos   continue after the model's end token

    Values are checked when the request arrives, not before, so that a bad request is refused
    without affecting others.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    num_samples: int = 1
    stop_tokens: Several[int] = ()
    ignore_eos: bool = False

    def checked(self, vocab_size: int) -> "SamplingParams":
        """The same parameters with Python's whole numbers. Raises TypeError or ValueError, naming
        the parameter, for a bad value."""
        least = {"max_tokens": 1, "num_samples": 1, "top_k": 0, "seed": 0}
        whole = {name: whole_number(name, getattr(self, name), least[name]) for name in least}
        temperature = real_number("temperature", self.temperature)
        finite = 0 <= temperature <= sys.float_info.max
        require(finite, "temperature", temperature, "a finite number, at least 0")
        top_p = real_number("top_p", self.top_p)
        require(0 < top_p <= 1, "top_p", top_p, "in (0, 1]")
        require_bool("ignore_eos", self.ignore_eos)
        # As a tuple: we don't guard against a custom collection whose `in` misbehaves.
        stop_tokens = [*self.stop_tokens] if isinstance(self.stop_tokens, Set) else self.stop_tokens
        stop_tokens = as_token_ids("stop_tokens", stop_tokens, vocab_size)
        return replace(
            self, temperature=temperature, top_p=top_p, stop_tokens=tuple(stop_tokens), **whole
        )


DEFAULT_PARAMS = SamplingParams()


def as_token_ids(name: str, token_ids: Several[int], vocab_size: int) -> list[int]:
    """Token ids as Python's whole numbers, also from NumPy and torch.

    Raises TypeError unless it is a sequence of whole numbers, and ValueError unless all of them
    are in the vocabulary.
    """
    numbers, allowed = whole_numbers(name, token_ids), f"a token id, 0 to {vocab_size - 1}"
    for index, number in enumerate(numbers):
        require(0 <= number < vocab_size, f"{name}[{index}]", number, allowed)
    return numbers


@dataclass(eq=False)
class Request:
    """One prompt, and the sequences that answer it.

    number   in order of arrival; smaller numbers are served first
    samples  one sequence; with num_samples > 1 the others are forked from it once K and V of the
             prompt are cached
    error    why it ended early; None if it didn't
    """

    number: int
    prompt: list[int]
    params: SamplingParams
    samples: list["Sequence"] = field(default_factory=list)
    error: Exception | None = None

    @property
    def is_finished(self) -> bool:
        return all(sample.finish_reason for sample in self.samples)


@dataclass(eq=False)
class Sequence:
    """One answer while it is generated: prompt and generated tokens.

    index          which sample of its request
    token_ids      the prompt and the tokens generated so far
    num_in_pages   how many of its first tokens have a place in the cache; 0 while it waits. K and V
                   of these tokens are there, or are written in this step
    finish_reason  "stop", "length", "error" or "cancelled"; None while it runs
    num_preemptions  how often it had to give up its blocks
    """

    request: Request
    index: int
    token_ids: list[int]
    num_in_pages: int = 0
    finish_reason: str | None = None
    num_preemptions: int = 0

    @property
    def age(self) -> tuple[int, int]:
        """First come, first served: the smallest comes first. It is also its name in the pages."""
        return self.request.number, self.index

    @property
    def generated(self) -> list[int]:
        return self.token_ids[len(self.request.prompt) :]
