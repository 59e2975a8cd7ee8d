"""Small random models of the transformers library, and their checkpoints."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

transformers = pytest.importorskip(
    "transformers", reason="transformers is the reference of the engine: an extra for tests"
)

transformers.utils.logging.disable_progress_bar()

VOCAB_SIZE = 96
# Heads of 32 dimensions, which the kernels of the ladder take; fewer KV heads than heads.
SIZES = {"vocab_size": VOCAB_SIZE, "intermediate_size": 96, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1}
SIZES |= {"tie_word_embeddings": False}
LLAMA = SIZES | {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {"head_dim": 32, "eos_token_id": [75, 35]}  # head_dim: twice the default, 64 / 4
QWEN2 = SIZES | {"hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1}
CONFIGS = {"llama": LLAMA, "qwen2": QWEN2 | {"eos_token_id": 10}}


def random_model(name: str, seed: int = 0, **changes: object) -> "transformers.PreTrainedModel":
    """A model with random weights, norms and biases: a weight that is forgotten shows.

    name     "llama" or "qwen2"
    changes  of its configuration
    """
    config = transformers.AutoConfig.for_model(name, **(CONFIGS[name] | changes))
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    random = torch.Generator().manual_seed(seed)  # not that of transformers' own initial weights
    for key, weight in model.named_parameters():
        if key.endswith("norm.weight"):
            weight.uniform_(0.5, 1.5, generator=random)
            continue
        width = 2.0 * weight.shape[-1] ** -0.5  # every layer changes which token is the likeliest
        width = 0.3 if key.endswith(".bias") else 1.0 if "embed_tokens" in key else width
        weight.normal_(0.0, width, generator=random)
    return model


def scores_of(model: "transformers.PreTrainedModel", tokens: Sequence[int]) -> Tensor:
    """[len(tokens), vocab_size], without a cache."""
    return model(torch.tensor([list(tokens)]), use_cache=False).logits[0]


def change_config(folder: Path, **changes: object) -> None:
    """In config.json; a value that is ... is taken away."""
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    kept = {key: value for key, value in values.items() if value is not ...}
    path.write_text(json.dumps(kept), encoding="utf-8")


def change_tensors(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})
