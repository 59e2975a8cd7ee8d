"""Checks of the engine: short scenes of requests, served together and each alone.

    check("engine")

Every scene is played twice: by an Engine, whose requests share steps and blocks, and by TinyLM
with a contiguous cache, which answers one request after the other. The tokens must be equal, and
so must facts: how many blocks were copied, who was preempted first, what is left in the pool.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from pa_tutorial.attention import tiny_lm
from pa_tutorial.checks.engine_alone import (
    AT_THE_END,
    ENDS,
    REASONS,
    Alone,
    ConfigWithEnd,
    trained,
)
from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.checks.running import Trial
from pa_tutorial.checks.script import scripts
from pa_tutorial.engine.engine import Engine
from pa_tutorial.engine.request import SamplingParams
from pa_tutorial.paging.block_pages import BlockPages

ENGINE = "engine"
SCENES = scripts("scenes.txt")
BLOCK_SIZE = 4
POOL = ("num_blocks", "block_size", "prefix_caching", "watermark")  # options for BlockPages
WIDTH = 24  # of a row in the comparison; also the most tokens that a request generates
NOTHING = -1.0  # pads a row
MOST_STEPS = 200  # a scene that takes more steps counts as endless


class Model:
    """TinyLM, watched, and with trouble on demand."""

    def __init__(self) -> None:
        self.inner = trained()
        self.config = ConfigWithEnd(**asdict(self.inner.config))
        self.most_tokens = 0  # in one run
        self.num_raises = 0  # how many more runs raise
        self.num_nan = 0  # how many more runs return NaN
        self.bad_token: int | None = None

    def parameters(self) -> object:
        return self.inner.parameters()

    def run(self, tokens: Tensor, positions: Tensor, attend: Callable, rows: Tensor) -> Tensor:
        self.most_tokens = max(self.most_tokens, len(tokens))
        self.num_raises -= 1
        raises = self.num_raises >= 0 or self.bad_token in tokens.tolist()

        def attend_or_raise(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = attend(layer, q, k, v)
            if raises:
                raise RuntimeError("trouble on demand, after K and V of the first layer")
            return out

        scores = self.inner.run(tokens, positions, attend_or_raise, rows=rows)
        self.num_nan -= 1
        if self.num_nan >= 0:
            scores[:1] = torch.nan
        return scores


class Served:
    """The real engine, with the operations of Alone. The properties are its facts."""

    def __init__(self, engine_class: Callable[..., Engine] = Engine, **options: Any) -> None:
        self.model = Model()
        pool = {"num_blocks": 512, "block_size": BLOCK_SIZE}
        pool |= {name: options.pop(name) for name in POOL if name in options}
        self.pages = BlockPages(**pool)
        self.engine = engine_class(self.model, self.pages, **options)
        self.requests: dict[str, Any] = {}
        self.facts: dict[str, list[float]] = {}
        self.finished: list[int] = []  # which requests, in the order of finishing
        self.blocks_copied = 0
        self.taken_back = 0
        self._seen: dict[object, list[int]] = {}
        self._count_copies()

    def _count_copies(self) -> None:
        cache = self.engine.runner.cache
        copy_blocks = cache.copy_blocks

        def counted(pairs: list[tuple[int, int]]) -> None:
            self.blocks_copied += len(pairs)
            copy_blocks(pairs)

        cache.copy_blocks = counted

    @property
    def num_steps(self) -> int:
        return len(self.engine.statistics)

    @property
    def num_running(self) -> int:
        return self.engine.statistics[-1].num_running

    @property
    def blocks_used(self) -> int:
        return self.engine.statistics[-1].blocks_used

    @property
    def was_preempted(self) -> bool:
        return self.engine.statistics[-1].num_preemptions > 0

    @property
    def preemptions(self) -> list[int]:
        """How often each request gave up its blocks."""
        requests = self.requests.values()
        return [sum(sample.num_preemptions for sample in r.samples) for r in requests]

    @property
    def tokens_in_the_cache(self) -> int:
        """The tokens of all prompts so far that were not computed."""
        return self.engine.scheduler.num_cached

    @property
    def most_tokens_in_a_step(self) -> int:
        return self.model.most_tokens

    @property
    def newest_answer(self) -> list[int]:
        """What the first sample of the newest request has generated."""
        return [*self.requests.values()][-1].samples[0].generated

    def add(self, name: str, prompt: str, **params: Any) -> None:
        token_ids = tiny_lm.encode(prompt).tolist()
        self.requests[name] = self.engine.add(token_ids, SamplingParams(**params))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.step()
            for number, request in enumerate(self.requests.values()):
                if request.is_finished and number not in self.finished:
                    self.finished.append(number)
                for sample in request.samples:
                    before = self._seen.get(sample, [])
                    self.taken_back += sample.generated[: len(before)] != before
                    self._seen[sample] = sample.generated

    def run(self) -> None:
        while not self.engine.is_idle and self.num_steps < MOST_STEPS:
            self.step()

    def cancel(self, name: str, num_generated: int) -> None:
        self.engine.cancel(self.requests[name])

    def must_end_with_an_error(self, name: str) -> None:
        pass

    def refused(self, prompt: str, **params: Any) -> None:
        try:
            self.engine.add(tiny_lm.encode(prompt).tolist(), SamplingParams(**params))
        except ValueError:
            refused = True
        else:
            refused = False
        self.facts[f"'{prompt}' refused {params}"] = [refused]

    def raises(self, times: int = 1) -> None:
        self.model.num_raises = times

    def raises_for(self, token: str) -> None:
        self.model.bad_token = ord(token)

    def nan_scores(self, times: int = 1) -> None:
        self.model.num_nan = times

    def fact(self, what: str, *expected: float) -> None:
        found = getattr(self, what)
        numbers = [*found] if isinstance(found, list) else [found]
        self.facts[f"{what} (fact {len(self.facts) + 1})"] = numbers

    def rows(self) -> dict[str, list[float]]:
        rows: dict[str, list[float]] = {}
        for name, request in self.requests.items():
            for index, sample in enumerate(request.samples):
                rows[f"{name}, sample {index}"] = sample.generated
            reasons = [sample.finish_reason for sample in request.samples]
            rows[f"{name}, {ENDS}"] = [REASONS.index(r) if r else NOTHING for r in reasons]
        endless = sum(not request.is_finished for request in self.requests.values())
        held = self.pages.num_blocks - 1 - self.pages.num_free
        failed = sum(step.error is not None for step in self.engine.statistics)
        at_the_end = zip(AT_THE_END, (endless, held, self.taken_back, failed), strict=True)
        return rows | self.facts | {name: [number] for name, number in at_the_end}


def as_rows(rows: dict[str, list[float]], names: list[str]) -> Tensor:
    """[rows, WIDTH] float64: these rows, padded; a missing row is empty."""
    cut = [rows.get(name, [])[:WIDTH] for name in names]
    filled = [[*row, *[NOTHING] * (WIDTH - len(row))] for row in cut]
    return torch.tensor(filled, dtype=torch.float64)


def scene_trial(name: str) -> Trial:
    """The trial of one scene; the function to test is a class like Engine."""
    scene = SCENES[name]
    alone = Alone()
    scene.play(alone)
    names = alone.names()

    def run(engine_class: Callable | None) -> dict[str, Tensor]:
        options = {"backend": "paged_online", **scene.options}
        options["backend"] = backend_named(options["backend"])
        served = Served(engine_class or Engine, **options)
        scene.play(served)
        served.run()
        return {"out": as_rows(served.rows(), names)}

    return Trial(
        name=name,
        isolates=scene.isolates,
        meaning=scene.meaning,
        run=run,
        references={"each request alone": lambda: {"out": as_rows(alone.rows(), names)}},
        bounds={"out": 0.0},
        axes=("|".join(names), "place"),
    )


def scene_trials() -> list[Trial]:
    return [scene_trial(name) for name in SCENES]
