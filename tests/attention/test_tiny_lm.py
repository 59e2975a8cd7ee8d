"""TinyLM: equal with and without its cache, small, trained on text that every Python has."""

import pytest
import torch

from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM, encode, load
from pa_tutorial.attention.train_tiny_lm import train, training_text


@pytest.mark.parametrize("prompt", ["A", pytest.param('é "while"\n', marks=pytest.mark.rest)])
def test_tokens_are_equal_with_and_without_cache(prompt: str) -> None:
    model, tokens = load(), encode(prompt)
    assert torch.equal(model.generate(tokens, 40), model.generate(tokens, 40, use_cache=False))


def test_training_lowers_the_loss() -> None:
    config = TinyConfig(num_layers=1, num_heads=2, num_kv_heads=1, head_size=32)
    text = training_text()
    model = train(config, text, steps=12, batch=4, length=32)
    scores = model(text[:128])
    assert torch.nn.functional.cross_entropy(scores, text[1:129]).item() < 4.0


def test_slopes_halve_from_head_to_head_of_eight() -> None:
    slopes = TinyConfig(num_heads=8, num_kv_heads=8, alibi=True).alibi_slopes()
    assert slopes.tolist() == [2.0**-n for n in range(1, 9)]


@pytest.mark.parametrize("use_cache", [True, False])
def test_text_may_grow_one_token_past_the_last_position(use_cache: bool) -> None:
    """The last token is never fed back, so it needs no position."""
    model, prompt = TinyLM(TinyConfig(num_layers=1, max_len=6)), encode("text")
    assert len(model.generate(prompt, 3, use_cache)) == 3
    with pytest.raises(ValueError, match="num_tokens is 4; it must be 0 to 3"):
        model.generate(prompt, 4, use_cache)


def test_a_cache_too_small_is_refused_before_any_layer_changes() -> None:
    model = TinyLM()
    caches = [*model.new_caches(8)[:-1], *model.new_caches(4)[-1:]]  # only the last is too small
    with pytest.raises(ValueError, match=r"len\(tokens\) is 5; .* 4 more"):
        model(torch.zeros(5, dtype=torch.int64), caches)
    assert [cache.seq_len for cache in caches] == [0, 0]
