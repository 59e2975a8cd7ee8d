"""TinyLM over a paged cache: prefill by decode steps, known prefixes, and what leaves no trace.

That tokens are those of one contiguous cache: notebook 06.
"""

import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.paged import flatten_queries, paged_online
from pa_tutorial.attention.tiny_lm import TinyLM, encode, load
from pa_tutorial.checks.paged_tiny_lm import PagedTinyLM
from pa_tutorial.checks.problem import SequenceProblem
from pa_tutorial.exercises.pages import Pages
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.layouts import LAYOUTS


@pytest.fixture(scope="module")
def model() -> TinyLM:
    return load()


def require_scores(model: TinyLM, scores: Tensor, *texts: str) -> None:
    """A row for each text: what follows, by the model without paging."""
    expected = torch.stack([model(encode(text))[-1] for text in texts])
    assert torch.allclose(scores, expected, atol=1e-4)


@pytest.mark.paged_online
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prefill_in_chunks_and_decode_share_steps(layout: str) -> None:
    model = SequenceProblem("", "", "", num_heads=6, num_kv_heads=2, alibi=True).model()
    lm = PagedTinyLM(model, Pages(64, 8), layout)
    text = "The class statement"
    for tokens in encode(text).split((7, 6, 1, 5)):
        lm.step(["old"], [tokens])
    scores = lm.step(["new", "old"], [encode("A list"), encode(" ")])
    require_scores(model, scores, "A list", f"{text} ")


def test_a_known_prefix_is_not_computed_again(model) -> None:
    computed = []

    def counting(q, *arguments):
        computed.append(len(q))
        return paged_online(q, *arguments)

    lm = PagedTinyLM(model, BlockPages(64, 8), attention=counting)
    text = "A list is a mutable seq"
    lm.step(["first"], [encode(text)])
    lm.step(["first"], [encode("u")])  # the third block is full now
    scores = lm.step(["second"], [encode(text + "u")])
    assert computed == [23, 23, 1, 1, 1, 1]  # two layers: all of it, one token, only the last
    assert lm.pages.table("second") == lm.pages.table("first")
    require_scores(model, scores, text + "u")
    texts = ("A class has a name", "A class has a base")  # a new prefix of two, in one step
    scores = lm.step(["one", "other"], [encode(text) for text in texts])
    assert lm.pages.table("one")[0] == lm.pages.table("other")[0]
    require_scores(model, scores, *texts)


def test_a_step_with_bad_tokens_changes_nothing_and_failing_generation_gives_blocks_back(
    model,
) -> None:
    lm = PagedTinyLM(model, Pages(5, 8))
    lm.step(["a"], [encode("A class")])
    with pytest.raises(ValueError, match=r"tokens has shape \[0\]"):
        lm.step(["a", "b"], [encode("x"), encode("")])
    with pytest.raises(OutOfBlocks):
        lm.generate([encode("A class"), encode("The")], 20)
    assert (lm.seq_lens, lm.pages.num_free) == ({"a": 7}, 3)
    require_scores(model, lm.step(["a"], [encode("e")]), "A classe")


@pytest.mark.parametrize("new", [0, 12])
def test_more_queries_than_tokens_are_refused(new: int) -> None:
    tables, seq_lens = torch.tensor([[5, 2], [3, 0]], dtype=torch.int32), torch.tensor([11, 4])
    with pytest.raises(ValueError, match=rf"query_lens\[0\] is {new}; it must be 1 to 11"):
        flatten_queries(tables, seq_lens, torch.tensor([new, 1]))
