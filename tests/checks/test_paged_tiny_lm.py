"""TinyLM over a paged cache: the tokens of 20 prompts, prefill by a decode step, known prefixes."""

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

TEXT = "Modules are found, loaded and, if the loader is new, initialised"
PROMPTS = [TEXT[:length] for length in range(1, 60, 3)]


@pytest.fixture(scope="module")
def model() -> TinyLM:
    return load()


def paged(model: TinyLM, num_blocks: int = 64, block_size: int = 8, **options) -> PagedTinyLM:
    return PagedTinyLM(model, Pages(num_blocks, block_size), **options)


@pytest.mark.rest(keep=["plain-32"])
@pytest.mark.paged_online
@pytest.mark.parametrize(
    ("layout", "block_size"),
    [(layout, size) for layout in LAYOUTS for size in (1, 8, 16, 32)],
)
def test_tokens_of_20_prompts_are_equal_with_and_without_paging(model, block_size, layout) -> None:
    prompts = [encode(prompt) for prompt in PROMPTS]
    lm = paged(model, 2000 // block_size, block_size, layout=layout)
    free = lm.pages.num_free
    assert lm.cache.layout.name == layout
    for prompt, tokens in zip(prompts, lm.generate(prompts, 32), strict=True):
        assert torch.equal(tokens, model.generate(prompt, 32))
    assert lm.pages.num_free == free


def require_scores(model: TinyLM, scores: Tensor, *texts: str) -> None:
    """A row for each text: what follows, by the model without paging."""
    expected = torch.stack([model(encode(text))[-1] for text in texts])
    assert torch.allclose(scores, expected, atol=1e-4)


@pytest.mark.parametrize("chunks", [(1,) * 20, (7, 6, 6, 1), (8, 8, 4)])
def test_a_decode_step_does_prefill_in_chunks_of_any_size(model, chunks) -> None:
    text = "The with statement i"
    lm = paged(model)
    for tokens in encode(text).split(chunks):
        scores = lm.step(["a"], [tokens])
    require_scores(model, scores, text)


def test_prefill_and_decode_share_a_step_with_alibi() -> None:
    model = SequenceProblem("", "", "", num_heads=6, num_kv_heads=2, alibi=True).model()
    lm = paged(model)
    lm.step(["old"], [encode("A lis")])
    scores = lm.step(["new", "old"], [encode("The class statement"), encode("t")])
    require_scores(model, scores, "The class statement", "A list")


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


def test_a_step_with_bad_tokens_changes_nothing(model) -> None:
    lm = paged(model, num_blocks=5)
    lm.step(["a"], [encode("A class")])
    with pytest.raises(ValueError, match=r"tokens has shape \[0\]"):
        lm.step(["a", "b"], [encode("x"), encode("")])
    assert (lm.seq_lens, lm.pages.num_free) == ({"a": 7}, 3)
    require_scores(model, lm.step(["a"], [encode("e")]), "A classe")


def test_blocks_are_given_back_when_generation_fails(model) -> None:
    lm = paged(model, num_blocks=3)
    with pytest.raises(OutOfBlocks):
        lm.generate([encode("A class"), encode("The")], 20)
    assert lm.pages.num_free == 2


@pytest.mark.parametrize("new", [0, 12])
def test_more_queries_than_tokens_are_refused(new: int) -> None:
    tables, seq_lens = torch.tensor([[5, 2], [3, 0]], dtype=torch.int32), torch.tensor([11, 4])
    with pytest.raises(ValueError, match=rf"query_lens\[0\] is {new}; it must be 1 to 11"):
        flatten_queries(tables, seq_lens, torch.tensor([new, 1]))
