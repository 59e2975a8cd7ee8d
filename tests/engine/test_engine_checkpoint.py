"""Checkpoints: scores and tokens are those of transformers; and what cannot be loaded.

The message then names the file and what is wrong with it.
"""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.train_tiny_lm import training_text
from pa_tutorial.engine import LLM, CheckpointError, SamplingParams, load_checkpoint

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


TOKENS = torch.randint(0, VOCAB_SIZE, (48,), generator=torch.Generator().manual_seed(1)).tolist()
DEFAULT = {"rope_type": "default", "rope_theta": 50.0}
LINEAR = {"rope_type": "linear", "rope_theta": 20_000.0, "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 2.0}
LLAMA3 |= {"high_freq_factor": 9.0, "original_max_position_embeddings": 256}
BIASES = {"attention_bias": True, "mlp_bias": True}
# What differs in the model; and in what version 4 of transformers wrote about it in config.json.
OPTIONAL = ("hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings", "rms_norm_eps")
VARIANTS = {
    "llama": ("llama", {}, {"rope_scaling": {"type": "other", "rope_type": "default"}}),
    "tied, linear rope": ("llama", {"tie_word_embeddings": True, "rope_parameters": LINEAR}, {}),
    "biases, llama3 rope": ("llama", BIASES | {"rope_parameters": LLAMA3}, {}),
    "head_dim is not given": ("llama", {"head_dim": None}, {"head_dim": ...}),
    "one KV head each": ("llama", {"num_key_value_heads": None}, {"num_key_value_heads": ...}),
    "rms_norm_eps": ("llama", {"rms_norm_eps": 0.3}, {}),
    "theta": ("qwen2", {"rope_parameters": DEFAULT}, {}),
    "no defaults": ("llama", {}, dict.fromkeys((*OPTIONAL, "rope_theta", "rope_scaling"), ...)),
    # Windows that are switched off; and o_proj of Qwen2 has no bias.
    "2.5": ("qwen2", {}, {"use_sliding_window": False, "sliding_window": 9}),
    "no switch": ("qwen2", {}, {"use_sliding_window": ..., "sliding_window": 9}),
    "no bias": ("qwen2", {}, {"attention_bias": True}),
}


def our_scores(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """[len(TOKENS), vocab_size]; the whole sequence at once, without blocks."""
    model = load_checkpoint(folder, dtype)
    assert {weight.dtype for weight in model.parameters()} == {dtype}
    assert (model.lm_head.weight is model.embed_tokens.weight) == model.config.is_tied

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cached_attention(q, k, v, model.config.scale)

    return model.run(torch.tensor(TOKENS), torch.arange(len(TOKENS)), attend)


def require_same_scores(folder: Path, model: object) -> None:
    """Both in float32: equal but for the rounding of sums in another order."""
    expected = scores_of(model, TOKENS)
    assert expected.std() > 1
    tolerance = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(our_scores(folder), expected, rtol=0, atol=tolerance)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama checkpoint of one's own, to be changed."""
    random_model("llama").save_pretrained(tmp_path)
    return tmp_path


def as_version_4(folder: Path) -> None:
    """What is now in rope_parameters stood in two places; a tied weight may be stored twice, and
    old files have the frequencies of the rotary embedding."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = values["rope_parameters"]
    changes = {"rope_theta": rope.pop("rope_theta"), "torch_dtype": values["dtype"]}
    kind = rope.pop("rope_type")
    changes["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    change_config(folder, rope_parameters=..., dtype=..., **changes)

    def change(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.rand(16)
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"].clone())

    change_tensors(folder, change)


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_are_those_of_transformers(variant, tmp_path) -> None:
    """As versions 5 and 4 of it save them; and a loader that ignored the variant would be seen."""
    name, changes, config = VARIANTS[variant]
    model = random_model(name, **changes)
    model.save_pretrained(tmp_path)
    require_same_scores(tmp_path, model)
    as_version_4(tmp_path)
    change_config(tmp_path, **config)
    require_same_scores(tmp_path, model)
    if changes:
        plain = random_model(name)
        assert (scores_of(model, TOKENS) - scores_of(plain, TOKENS)).abs().max() > 0.1


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_greedy_tokens_are_those_of_transformers(name, tmp_path) -> None:
    """In chunks, with shared prefixes, and in a pool that is too small for all."""
    model = random_model(name)
    model.save_pretrained(tmp_path)
    prompts = [TOKENS[: 5 + 7 * n] for n in range(6)]
    llm = LLM(tmp_path, num_blocks=9, block_size=8, chunk_size=16, token_budget=64)
    completions = llm.generate(prompts, SamplingParams(24), progress=False)
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        theirs = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False)
        assert completion.token_ids == [theirs[0, len(prompt) :].tolist()]
    assert llm.statistics[-1].num_preemptions > 0


def test_shards_are_put_together(tmp_path) -> None:
    model = random_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    require_same_scores(tmp_path, model)
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=f"{shards[1].name} cannot be read"):
        load_checkpoint(tmp_path)


def test_weights_are_computed_in_the_dtype_that_is_asked_for(folder) -> None:
    model = random_model("llama")
    exact, theirs = scores_of(model, TOKENS), scores_of(deepcopy(model).bfloat16(), TOKENS)
    ours = our_scores(folder, torch.bfloat16)
    assert ours.dtype == torch.bfloat16
    # As far from the exact scores as transformers, not farther.
    assert (ours - exact).abs().mean() < 2 * (theirs - exact).abs().mean()


# Llama 3 and Qwen2 for dialogue have more end tokens in generation_config.json than in config.json.
@pytest.mark.parametrize(
    ("generation", "expected"), [({"eos_token_id": [6, 8]}, {6, 8}), ({"eos_token_id": None}, {5})]
)
def test_end_tokens_are_read_from_either_config(generation: dict, expected: set, folder) -> None:
    change_config(folder, eos_token_id=5)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(generation), encoding="utf-8")
    assert set(load_checkpoint(folder).config.eos_tokens) == expected
    path.unlink()
    assert set(load_checkpoint(folder).config.eos_tokens) == {5}


def test_text_goes_through_tokenizer_json_and_is_refused_without_it(folder) -> None:
    params = SamplingParams(4, ignore_eos=True)
    text, tokens = LLM(folder).generate(["w3 w14", [3, 14]], params, progress=False)
    assert "this model has no tokenizer" in str(text.error)
    with pytest.raises(ValueError, match="text is None"):
        _ = tokens.text
    words = {f"w{number}": number for number in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (text,) = LLM(folder).generate(["w3 w14"], params, progress=False)
    assert text.token_ids == tokens.token_ids
    assert text.text.split() == [f"w{token}" for token in tokens.token_ids[0]]


# What cannot be loaded: how a folder is spoilt, and the message

INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"
Spoil = Callable[[Path], object]


def config(**changes: object) -> Spoil:
    return lambda folder: change_config(folder, **changes)


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Spoil:
    return lambda folder: change_tensors(folder, change)


def file(name: str, content: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


REFUSED = [
    (config(model_type="mistral"), r"config.json: model_type is mistral"),
    (config(hidden_act="gelu"), "hidden_act is gelu"),
    (config(sliding_window=4096), "sliding_window is 4096"),
    (config(quantization_config={"bits": 4}), "quantization_config is"),
    (config(rope_parameters={"rope_type": "yarn"}), "rope_type is yarn"),
    (config(rope_parameters={"rope_type": "linear"}), "config.json has no 'factor'"),
    (config(rope_parameters={"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
    (config(rms_norm_eps=float("inf")), "rms_norm_eps is inf"),
    (config(num_key_value_heads=3), "num_key_value_heads is 3; .*divisor .* 4"),
    (config(vocab_size=...), "config.json has no 'vocab_size'"),
    (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    (file("config.json", b"{"), "config.json isn't JSON"),
    (file(INDEX, b'{"weight_map": 3}'), "has no weight_map"),
    (file("model.safetensors", b"\x99"), "model.safetensors cannot be read"),
    (file("tokenizer.json", b"{}"), "tokenizer.json cannot be read"),
    (tensors(lambda t: t.pop("lm_head.weight")), "lm_head.weight is missing"),
    (tensors(lambda t: t.update({UP: t[UP][1:] * 1})), r"up_proj.weight is \[95, 64\].*\[96, 64\]"),
    (tensors(lambda t: [t.pop(k) for k in list(t) if "layers.0." in k]), "missing.*; and 4 more"),
]


@pytest.mark.parametrize(("spoil", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_spoilt_checkpoint_is_refused(spoil: Spoil, message: str, folder: Path) -> None:
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        LLM(folder)


def test_training_lowers_the_loss() -> None:
    train = pytest.importorskip("pa_tutorial.engine.train_tiny_llama")
    config = transformers.LlamaConfig(**train.CONFIG.to_dict() | {"num_hidden_layers": 1})
    text = training_text()
    model = train.train(config, text, steps=12, batch=4, length=32)
    with torch.no_grad():
        assert model(input_ids=text[None, :129], labels=text[None, :129]).loss < 4.0
