"""TinyLM: equal with and without its cache, small, trained on text that every Python has."""

import pytest
import torch

from pa_tutorial.attention.tiny_lm import WEIGHTS, TinyConfig, TinyLM, decode, encode, load, save
from pa_tutorial.attention.train_tiny_lm import train, training_text

PROMPTS = ("A", "The", "A class", "A list is", 'The "while" statement', "é", "\n\n   ", "zzzzz")


@pytest.mark.rest(keep=["A"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_tokens_are_equal_with_and_without_cache(prompt: str) -> None:
    model, tokens = load(), encode(prompt)
    assert torch.equal(model.generate(tokens, 40), model.generate(tokens, 40, use_cache=False))


def test_the_committed_weights_are_trained() -> None:
    text = encode(
        "Assert statements are a convenient way to insert debugging assertions\ninto a program:"
    )
    scores = load()(text[:-1])
    loss = torch.nn.functional.cross_entropy(scores, text[1:]).item()
    assert loss < 1.0, "an untrained model has log(256) = 5.5 nats per byte"


def test_weights_are_under_one_megabyte_and_survive_saving(tmp_path) -> None:
    assert WEIGHTS.stat().st_size < 1_000_000
    model = load()
    save(model, tmp_path / "copy.pt")
    again = load(tmp_path / "copy.pt")
    assert again.config == model.config
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_training_lowers_the_loss() -> None:
    config = TinyConfig(num_layers=1, num_heads=2, num_kv_heads=1, head_size=32)
    text = training_text()
    torch.manual_seed(0)
    model = train(config, text, steps=12, batch=4, length=32)
    window = text[:129]
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(window[:-1]), window[1:]).item()
    assert loss < 4.0


@pytest.mark.parametrize("use_cache", [True, False])
def test_text_may_grow_one_token_past_the_last_position(use_cache: bool) -> None:
    """The last token is never fed back, so it needs no position."""
    model, prompt = TinyLM(TinyConfig(num_layers=1, max_len=6)), encode("text")
    assert len(model.generate(prompt, 3, use_cache)) == 3
    with pytest.raises(ValueError, match="num_tokens is 4; it must be 0 to 3"):
        model.generate(prompt, 4, use_cache)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(0, dtype=torch.int64), r"tokens has shape \[0\]; .*at least one"),
        (torch.zeros(300, dtype=torch.int64), "positions holds 256; it must be 0 to 255"),
        (torch.tensor([3, 256]), "tokens holds 256; it must be 0 to 255"),
    ],
)
def test_bad_tokens_are_refused_before_the_cache_changes(tokens, message) -> None:
    model = TinyLM()
    caches = model.new_caches()
    with pytest.raises(ValueError, match=message):
        model(tokens, caches)
    assert [cache.seq_len for cache in caches] == [0, 0]


def test_a_cache_too_small_is_refused_before_any_layer_changes() -> None:
    model = TinyLM()
    caches = [*model.new_caches(8)[:-1], *model.new_caches(4)[-1:]]  # only the last is too small
    with pytest.raises(ValueError, match=r"len\(tokens\) is 5; .* room for 4 more"):
        model(torch.zeros(5, dtype=torch.int64), caches)
    assert [cache.seq_len for cache in caches] == [0, 0]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (torch.arange(2), r"positions has shape \[2\]; it must be \[3\], one for each token"),
        (torch.tensor([0, 1, 256]), "positions holds 256; it must be 0 to 255"),
    ],
)
def test_positions_that_do_not_fit_are_refused(positions, message) -> None:
    with pytest.raises(ValueError, match=message):
        TinyLM().run(torch.zeros(3, dtype=torch.int64), positions, lambda layer, q, k, v: q)


def test_text_survives_encoding() -> None:
    assert decode(encode("for é in ∑:")) == "for é in ∑:"
    assert decode(torch.tensor([0xFF])) == "\ufffd"
