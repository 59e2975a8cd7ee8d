"""A step of the engine on many ranks: one scheduler, the same batch everywhere."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor

from pa_tutorial.attention.backend import Backend
from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.heads import shard_heads
from pa_tutorial.engine.batch import Batch
from pa_tutorial.engine.llm import LLM
from pa_tutorial.engine.runner import Model, Runner
from pa_tutorial.engine.tokenizer import Tokenizer


class ParallelRunner(Runner):
    """The Runner of one rank: its part of the model, and its heads of every block.

    The ranks compare a batch before they compute it. Any error in a step ends the job on all
    ranks, because ranks that have computed different parts of a step have no common state to
    return to.
    """

    def __init__(self, *sizes: object, group: Group) -> None:
        super().__init__(*sizes)
        self.group, self.num_steps = group, 0

    def run(self, batch: Batch | None = None) -> Tensor | None:
        """Compute the batch of rank 0, on every rank at the same time.

        batch    on rank 0, where the engine calls this; without one, rank 0 lets the others stop
        returns  as Runner.run, on every rank; None if there is no batch
        """
        try:
            # The sequences stay on rank 0, which has the scheduler.
            batch = self.group.from_rank_0(batch and replace(batch, sampled=[]))
            if batch is None:
                return None
            self.group.doing = f"step {self.num_steps}"
            self.num_steps += 1
            self.group.agree(self.group.doing, *vars(batch).values())
            return super().run(batch).clone()  # waits for data that other ranks are still sending
        except Exception as error:  # else the engine would try each sequence again, on rank 0 alone
            self.group.fail(error)


def serve(
    model: Model,
    tokenizer: Tokenizer | None,
    group: Group,
    work: Callable[[LLM], object],
    **options: object,
) -> object:
    """Split a model over the ranks, and let rank 0 work with it; every rank calls this.

    model    the same on every rank; its layers are split in place
    work     called with the LLM, on rank 0 only
    options  options of the Engine, the same on every rank
    returns  the result of `work`; None on the other ranks

    Raises Disagreement, before anything is split, if the ranks have different models or options.
    """
    # Compare the weights too, because every rank keeps its own embedding and norms.
    facts = model.config, options | {"backend": described(options.get("backend"))}
    group.agree("before the model is split", *facts, *model.parameters())
    shard_heads(model, group)
    # Every rank makes an Engine, so that defaults are the same; only rank 0's schedules.
    llm = LLM(model, tokenizer, make_runner=partial(ParallelRunner, group=group), **options)
    runner = llm.engine.runner
    if group.rank == 0:
        result = work(llm)
        runner.run(None)
        return result
    while runner.run() is not None:
        pass


def described(backend: Backend | None) -> tuple[str, dict[str, object]]:
    """A backend's class and fields, as text that is the same on every rank."""
    fields = vars(backend).items() if backend is not None else ()
    return type(backend).__name__, {name: getattr(v, "__name__", v) for name, v in fields}
