"""The small Llama that comes with the package: trained, small, and the same in transformers."""

import pytest
import torch

from pa_tutorial.attention.tiny_lm import encode
from pa_tutorial.attention.train_tiny_lm import training_text
from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.engine.checkpoint import TINY_LLAMA
from tests.engine.hf_models import transformers

PROMPTS = ("The for statement", "Python is", "Assert statements are")


def test_it_is_small_and_complete() -> None:
    assert sorted(path.name for path in TINY_LLAMA.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert sum(path.stat().st_size for path in TINY_LLAMA.iterdir()) < 1_000_000


def test_it_answers_as_in_transformers() -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(TINY_LLAMA, dtype=torch.float32)
    completions = LLM("tiny_llama").generate(PROMPTS, SamplingParams(24), progress=False)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = encode(prompt)[None]
        with torch.no_grad():
            theirs = model.generate(ids, max_new_tokens=24, do_sample=False)
        assert theirs[0, ids.shape[1] :].tolist() == completion.token_ids[0]
    assert completions[1].text.startswith(" also value pair")


def test_training_lowers_the_loss() -> None:
    train = pytest.importorskip("pa_tutorial.engine.train_tiny_llama")
    config = transformers.LlamaConfig(**train.CONFIG.to_dict() | {"num_hidden_layers": 1})
    text = training_text()
    model = train.train(config, text, steps=12, batch=4, length=32)
    with torch.no_grad():
        assert model(input_ids=text[None, :129], labels=text[None, :129]).loss < 4.0
