"""Train a small Llama on a text that comes with every Python: its own documentation.

    python -m pa_tutorial.engine.train_tiny_llama

takes about a minute on two cores and writes the folder tiny_llama next to this file, in Hugging
Face's format: transformers can load it, and so can load_checkpoint. Like TinyLM's, the weights are
committed, and you need this script only to change them.
"""

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pa_tutorial.attention.train_tiny_lm import (
    descend,
    make_schedules,
    say,
    training_text,
    windows,
)
from pa_tutorial.engine.checkpoint import TINY_LLAMA
from pa_tutorial.printing import print_anything

# As wide as TinyLM, whose heads of 32 elements every kernel of the walk takes.
CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=320,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)


def train(
    config: LlamaConfig, text: Tensor, steps: int, batch: int, length: int
) -> LlamaForCausalLM:
    """Fit a Llama to predict the next byte of `text`; prints the loss now and then."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = LlamaForCausalLM(config)
    schedules = make_schedules(model, model.model.layers, steps)
    for step in range(steps):
        pieces = windows(text, batch, length, generator)
        loss = model(input_ids=pieces, labels=pieces).loss
        descend(model, loss, schedules)
        say(step, steps, loss)
    return model


if __name__ == "__main__":
    print_anything()
    model = train(CONFIG, training_text(), steps=1400, batch=4, length=256)
    model.half().save_pretrained(TINY_LLAMA)
    (TINY_LLAMA / "generation_config.json").unlink()  # says nothing that config.json doesn't
