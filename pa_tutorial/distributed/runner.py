"""A step of the engine on many ranks: one scheduler, the same batch everywhere."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from pa_tutorial.distributed.group import Group, hash_of
from pa_tutorial.distributed.heads import shard_heads
from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.llm import LLM
from pa_tutorial.engine.runner import Model, Runner
from pa_tutorial.engine.tokenizer import Tokenizer


class ParallelRunner(Runner):
    """The Runner of one rank: its part of the model, and its heads of every block.

    On rank 0 the Engine calls `run` as it does with any Runner; the other ranks `follow`.

    The ranks compare before they compute: once the sizes of model and cache, and in every step
    the batch. Whatever goes wrong in a step ends the job on all ranks: ranks that have computed
    different parts of a step have no common state to go back to.

    Raises Disagreement if the ranks have different sizes; otherwise as Runner.
    """

    def __init__(
        self, model: Model, stage: str, num_blocks: int, block_size: int, group: Group
    ) -> None:
        super().__init__(model, stage, num_blocks, block_size)
        self.group = group
        self.num_steps = 0
        sizes = {"model": model.config.whole, "stage": stage, "cache": self.cache.layout}
        group.agree("before the first step", sizes)

    def run(self, batch: Batch) -> Tensor:
        """On rank 0: compute a batch, together with all ranks that follow."""
        return self._guarded(batch)

    def _guarded(self, batch: Batch) -> Tensor:
        try:
            return self._step(batch)
        except Exception as error:  # of which the engine would try every sequence again
            self.group.fail(error)

    def follow(self) -> None:
        """On the other ranks: compute what rank 0 computes, until it stops."""
        while self._step() is not None:
            pass

    def stop(self) -> None:
        """On rank 0: let the others return from `follow`."""
        self.group.from_rank_0(None)

    def _step(self, batch: Batch | None = None) -> Tensor | None:
        """The scores; None if rank 0 has stopped."""
        # The sequences stay on rank 0, with the scheduler that knows them.
        batch = self.group.from_rank_0(None if batch is None else replace(batch, sampled=[]))
        if batch is None:
            return None
        self.group.doing = f"step {self.num_steps}"
        self.num_steps += 1
        self.group.agree(self.group.doing, vars(batch))
        scores = super().run(batch)
        return scores.clone()  # on every rank: waits for what the others are still sending


def serve(
    model: Model,
    tokenizer: Tokenizer | None,
    group: Group,
    work: Callable[[LLM], object],
    **options: object,
) -> object:
    """Cut a model over the ranks, and let rank 0 work with it; every rank calls this.

    model    the same on every rank; its layers are cut in place
    work     called with the LLM, on rank 0 only
    options  of the Engine, the same on every rank
    returns  what `work` returned; None on the other ranks

    Raises Disagreement, before anything is cut, if the ranks have different models.
    """
    # Not only the sizes: embedding and norms stay on every rank as they are.
    weights = [hash_of(weight) for weight in model.parameters()]
    group.agree("before the model is cut", {"sizes": model.config, "weights": weights})
    shard_heads(model, group)
    # Every rank makes an Engine, so that sizes and defaults are the same; one of them schedules.
    llm = LLM(model, tokenizer, make_runner=partial(ParallelRunner, group=group), **options)
    runner = llm.engine.runner
    if group.rank > 0:
        return runner.follow()
    result = work(llm)
    runner.stop()
    return result
