"""Checkpoints in Hugging Face's format: config.json and *.safetensors in a folder."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pa_tutorial.arguments import real_number, require, require_dtype, require_type, whole_numbers
from pa_tutorial.engine.model import Llama, LlamaConfig
from pa_tutorial.engine.rope import Rope
from pa_tutorial.tracebacks import ShortInNotebooks

TINY_LLAMA = Path(__file__).with_name("tiny_llama")  # which comes with the package
MODEL_TYPES = ("llama", "qwen2")
# What each type of rotary embedding has besides theta, in the order of Rope's fields.
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
ROPE_TYPES = {"default": (), "linear": LLAMA3[:1], "llama3": LLAMA3}
NAMED_AT_MOST = 5  # the most tensors that a message lists


class CheckpointError(ShortInNotebooks, ValueError):
    """A folder without a model that can be loaded; the message says what is wrong."""


def load_checkpoint(folder: str | os.PathLike, dtype: torch.dtype = torch.float32) -> Llama:
    """Load a Llama or Qwen2 model from a local folder; nothing is downloaded.

    dtype  of the weights in memory, which may differ from their dtype in the files

    Raises CheckpointError for a folder without config.json or weights, for another architecture,
    and for missing, unexpected or wrongly sized tensors, which it names.
    """
    require_type(isinstance(folder, str | os.PathLike), "folder", folder, "a path")
    require_dtype(dtype)
    folder = Path(folder)
    config = read_config(folder)
    tensors = read_tensors(folder)
    with torch.device("meta"):  # allocates no memory
        model = Llama(config)
    if config.is_tied:  # some files contain the tied weight twice
        tensors["lm_head.weight"] = tensors.get("embed_tokens.weight", torch.empty(0))
    require_tensors(folder, model.state_dict(), tensors)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    model.load_state_dict(tensors, assign=True)
    if config.is_tied:
        model.lm_head.weight = model.embed_tokens.weight
    return model.requires_grad_(False)


def read_json(path: Path) -> dict[str, object]:
    """Raises CheckpointError unless the file holds one JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # neither JSON nor, perhaps, text
        raise CheckpointError(f"{path} isn't JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} isn't a JSON object but a {type(values).__name__}")
    return values


def read_config(folder: Path) -> LlamaConfig:
    """config.json as a LlamaConfig. Raises CheckpointError for anything our model can't do."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    if not path.is_file():
        raise CheckpointError(f"the model folder {folder} has no config.json, and must have one")
    values = read_json(path)
    if generation.is_file():  # its end tokens win, because chat models have more of them
        eos = read_json(generation).get("eos_token_id")
        values |= {} if eos is None else {"eos_token_id": eos}
    try:
        return config_from(values)
    except KeyError as error:
        raise CheckpointError(f"{path} has no {error.args[0]!r}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def size_of(values: Mapping[str, object], name: str, default: int | None = None) -> int:
    """Raise KeyError if it is missing without a default, and ValueError unless it is a size."""
    size = values[name] if default is None else values.get(name) or default
    whole = isinstance(size, int) and not isinstance(size, bool)
    require(whole and size >= 1, name, size, "a whole number, at least 1")
    return size


def number_of(values: Mapping[str, object], name: str, default: float | None = None) -> float:
    """The same for a number above 0."""
    number = real_number(name, values[name] if default is None else values.get(name, default))
    require(0 < number < float("inf"), name, number, "above 0, and finite")
    return number


def flag_of(values: Mapping[str, object], name: str) -> bool:
    flag = values.get(name, False)
    require_type(isinstance(flag, bool), name, flag, "true or false")
    return flag


def require_plain(values: Mapping[str, object]) -> None:
    """Raise ValueError for a sliding window and for quantized weights."""
    is_on, window = values.get("use_sliding_window"), values.get("sliding_window")
    require(not is_on, "use_sliding_window", is_on, "false: sliding windows aren't supported")
    # Qwen2's configs name a window that is off; a missing switch also means off.
    is_off = is_on is False or values["model_type"] == "qwen2"
    allowed = "null: sliding windows aren't supported"
    require(not window or is_off, "sliding_window", window, allowed)
    quantized = values.get("quantization_config")
    allowed = "null: quantized weights aren't supported"
    require(not quantized, "quantization_config", quantized, allowed)


def config_from(values: Mapping[str, object]) -> LlamaConfig:
    """Raise KeyError for a missing entry, and ValueError for anything our model can't do."""
    model_type = values["model_type"]
    require(model_type in MODEL_TYPES, "model_type", model_type, f"one of {MODEL_TYPES}")
    activation = values.get("hidden_act", "silu")
    require(activation == "silu", "hidden_act", activation, "silu")
    require_plain(values)
    num_heads = size_of(values, "num_attention_heads")
    hidden_size = size_of(values, "hidden_size")
    num_kv_heads = size_of(values, "num_key_value_heads", num_heads)
    head_size = size_of(values, "head_dim", hidden_size // num_heads)
    require(head_size % 2 == 0, "head_dim", head_size, "even: its elements are turned in pairs")
    allowed = f"a divisor of num_attention_heads, which is {num_heads}"
    require(num_heads % num_kv_heads == 0, "num_key_value_heads", num_kv_heads, allowed)
    is_qwen2 = model_type == "qwen2"
    attention_bias = flag_of(values, "attention_bias")
    eos = values.get("eos_token_id")
    ends = [eos] if isinstance(eos, int) else eos or []
    return LlamaConfig(
        num_layers=size_of(values, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        hidden_size=hidden_size,
        mlp_size=size_of(values, "intermediate_size"),
        vocab_size=size_of(values, "vocab_size"),
        max_len=size_of(values, "max_position_embeddings"),
        norm_eps=number_of(values, "rms_norm_eps", 1e-6),
        rope=rope_from(values),
        qkv_bias=is_qwen2 or attention_bias,
        out_bias=attention_bias and not is_qwen2,
        mlp_bias=flag_of(values, "mlp_bias"),
        is_tied=flag_of(values, "tie_word_embeddings"),
        eos_tokens=tuple(whole_numbers("eos_token_id", ends)),
    )


def rope_from(values: Mapping[str, object]) -> Rope:
    """From rope_parameters (transformers 5), or rope_theta and rope_scaling (4)."""
    name = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    of_rope = values.get(name) or {}
    require_type(isinstance(of_rope, dict), name, of_rope, "a JSON object")
    values = values | of_rope
    theta = number_of(values, "rope_theta", 10_000.0)
    part = values.get("partial_rotary_factor", 1.0)
    require(part == 1, "partial_rotary_factor", part, "1: partial rotation isn't supported")
    scaling = values.get("rope_type", values.get("type", "default"))
    require(str(scaling) in ROPE_TYPES, "rope_type", scaling, f"one of {', '.join(ROPE_TYPES)}")
    return Rope(theta, scaling, *(number_of(values, name) for name in ROPE_TYPES[scaling]))


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of one file, or of the shards in the index; names without "model."."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or {*map(type, shards.values())} - {str}:
            raise CheckpointError(f"{index} has no weight_map, from tensors to files")
        names = sorted(set(shards.values()))
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118  (it isn't a dictionary)
                    tensors[key.removeprefix("model.")] = file.get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error}") from error
    # Old files contain the frequencies of the rotary embedding, which we compute.
    return {key: value for key, value in tensors.items() if not key.endswith("rotary_emb.inv_freq")}


def require_tensors(
    folder: Path, expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Raise CheckpointError unless exactly the expected tensors are there, with their sizes."""
    sizes, found = (
        {name: list(tensor.shape) for name, tensor in of.items()} for of in (expected, tensors)
    )
    faults = [
        f"{name} is {found.get(name, 'missing')}, and must be {sizes.get(name, 'left out')}"
        for name in sizes | found
        if found.get(name) != sizes.get(name)
    ]
    if faults:
        more = len(faults) - NAMED_AT_MOST
        end = f"; and {more} more" if more > 0 else ""
        raise CheckpointError(f"{folder}: {'; '.join(faults[:NAMED_AT_MOST])}{end}")
