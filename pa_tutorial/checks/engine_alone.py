"""What requests must answer: TinyLM answers each alone, with a contiguous cache."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from pa_tutorial.attention import tiny_lm
from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.engine.request import SamplingParams
from pa_tutorial.engine.sampling import choose_token

REASONS = ("stop", "length", "error", "cancelled")
ENDS = "why its samples ended (stop, length, error, cancelled)"
# Facts of every scene. All are always 0, except the last one in a scene that makes steps fail.
AT_THE_END = (
    "requests that never end",
    "blocks that are never freed",
    "tokens taken back",
    "steps that failed",
)


@cache
def trained() -> TinyLM:
    return tiny_lm.load()


@dataclass(frozen=True)
class ConfigWithEnd(TinyConfig):
    """TinyLM has no token that ends a text; here a full stop does."""

    eos_tokens: tuple[int, ...] = (ord("."),)


class Alone:
    """The expected result: every request answered alone, with a contiguous cache."""

    def __init__(self, **options: object) -> None:
        self.asked: dict[str, tuple[list[int], SamplingParams]] = {}
        self.cut: dict[str, tuple[int, int]] = {}  # name -> tokens it generated, why it ended
        self.facts: dict[str, list[float]] = {}
        self.num_failures = 0  # steps that must fail

    def add(self, name: str, prompt: str, **params: Any) -> None:
        """A request arrives."""
        self.asked[name] = tiny_lm.encode(prompt).tolist(), SamplingParams(**params)

    def step(self, times: int = 1) -> None:
        pass

    def run(self) -> None:
        """Run steps until every request has ended."""

    def cancel(self, name: str, num_generated: int) -> None:
        """Cancel a request; by now it must have this many tokens."""
        self.cut[name] = num_generated, REASONS.index("cancelled")

    def must_end_with_an_error(self, name: str) -> None:
        """The request must end with an error before its first token; all others continue."""
        self.cut[name] = 0, REASONS.index("error")
        self.num_failures += 2  # with others, then alone

    def refused(self, prompt: str, **params: Any) -> None:
        """A request that must be refused with a ValueError."""
        self.facts[f"'{prompt}' refused {params}"] = [1]

    def raises(self, times: int = 1) -> None:
        """The model raises in its next runs, after writing K and V of its first layer."""
        self.num_failures += times

    def raises_for(self, token: str) -> None:
        """The model raises in every run over this token."""

    def nan_scores(self, times: int = 1) -> None:
        """In its next runs, the model returns NaN scores in the first requested row."""
        self.num_failures += times

    def fact(self, what: str, *expected: float) -> None:
        """A number, or several, that must be right now; `what` is an attribute of Served."""
        self.facts[f"{what} (fact {len(self.facts) + 1})"] = list(expected)

    def _generate(self, name: str, sample: int) -> list[int]:
        """The tokens of one sample, from the model and a contiguous cache."""
        prompt, params = self.asked[name]
        model = trained()
        caches = model.new_caches()
        new, generated = prompt, []
        while len(generated) < params.max_tokens:
            with torch.inference_mode():
                scores = model(torch.tensor(new), caches)[-1]
            new = [choose_token(scores, params, sample, len(generated))]
            generated += new
            if self._ends_with(params, generated) == "stop":
                break
        return generated

    def _ends_with(self, params: SamplingParams, generated: list[int]) -> str:
        ends = () if params.ignore_eos else ConfigWithEnd.eos_tokens
        return "stop" if generated[-1] in (*params.stop_tokens, *ends) else "length"

    def rows(self) -> dict[str, list[float]]:
        """Name of the row -> its numbers: tokens of every sample, why they ended, facts."""
        rows: dict[str, list[float]] = {}
        for name, (_, params) in self.asked.items():
            samples = 1 if name in self.cut else params.num_samples
            tokens = [self._generate(name, sample) for sample in range(samples)]
            reasons = [REASONS.index(self._ends_with(params, sample)) for sample in tokens]
            if name in self.cut:
                length, reason = self.cut[name]
                tokens, reasons = [tokens[0][:length]], [reason]
            rows |= {f"{name}, sample {index}": sample for index, sample in enumerate(tokens)}
            rows[f"{name}, {ENDS}"] = reasons
        at_the_end = zip(AT_THE_END, (0, 0, 0, self.num_failures), strict=True)
        return rows | self.facts | {name: [number] for name, number in at_the_end}

    def names(self) -> list[str]:
        """The names of the rows, without computing them."""
        names = []
        for name, (_, params) in self.asked.items():
            samples = 1 if name in self.cut else params.num_samples
            names += [f"{name}, sample {index}" for index in range(samples)]
            names.append(f"{name}, {ENDS}")
        return [*names, *self.facts, *AT_THE_END]
