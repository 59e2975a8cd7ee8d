"""Checkpoints: the scores are those of transformers, and so is where a text ends."""

import json
from pathlib import Path

import pytest
import torch
from hf_models import (
    VOCAB_SIZE,
    change_config,
    change_tensors,
    folder_of,
    model_named,
    random_model,
    scores_of,
    transformers,
)
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.engine import LLM, SamplingParams, load_checkpoint
from pa_tutorial.engine.model import Llama

TOKENS = torch.randint(0, VOCAB_SIZE, (48,), generator=torch.Generator().manual_seed(1)).tolist()
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA3_TOO = LLAMA3 | {
    "factor": 4.0,
    "low_freq_factor": 2.0,
    "high_freq_factor": 9.0,
    "original_max_position_embeddings": 256,
}
LINEAR = {"rope_type": "linear", "rope_theta": 20_000.0, "factor": 4.0}
VARIANTS = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "attention_bias": ("llama", {"attention_bias": True}),
    "mlp_bias": ("llama", {"mlp_bias": True}),
    "head_dim is not given": ("llama", {"head_dim": None}),
    "one KV head each": ("llama", {"num_key_value_heads": None}),
    "rms_norm_eps": ("llama", {"rms_norm_eps": 0.3}),
    "rope_theta": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "linear rope": ("llama", {"rope_parameters": LINEAR}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama3 rope, other numbers": ("llama", {"rope_parameters": LLAMA3_TOO}),
}


def our_scores(model: Llama) -> Tensor:
    """[len(TOKENS), vocab_size]; the whole sequence at once, without blocks."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cached_attention(q, k, v, model.config.scale)

    return model.run(torch.tensor(TOKENS), torch.arange(len(TOKENS)), attend)


def require_same_scores(folder: Path, expected: Tensor) -> None:
    """Both in float32: equal but for the rounding of sums in another order."""
    assert expected.std() > 1
    tolerance = 1e-5 * float(expected.abs().max())
    ours = our_scores(load_checkpoint(folder))
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama checkpoint of one's own, to be changed."""
    model_named("llama").save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_are_those_of_transformers(variant, tmp_path) -> None:
    name, changes = VARIANTS[variant]
    model = random_model(name, **changes)
    model.save_pretrained(tmp_path)
    require_same_scores(tmp_path, scores_of(model, TOKENS))


@pytest.mark.parametrize(
    "variant", [variant for variant, (_, changes) in VARIANTS.items() if changes]
)
def test_every_variant_matters(variant) -> None:
    """Its scores are not those of the plain model: a loader that ignored it would be seen."""
    name, changes = VARIANTS[variant]
    plain = scores_of(random_model(name), TOKENS)
    assert (scores_of(random_model(name, **changes), TOKENS) - plain).abs().max() > 0.1


def test_shards_are_put_together(tmp_path) -> None:
    model = model_named("llama")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    require_same_scores(tmp_path, scores_of(model, TOKENS))


def as_version_4(values: dict) -> None:
    """As transformers 4 wrote it: what is now in rope_parameters stood in two places."""
    rope = values.pop("rope_parameters")
    values["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    values["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    values["torch_dtype"] = values.pop("dtype")


@pytest.mark.parametrize("variant", ["llama", "qwen2", "rope_theta", "linear rope", "llama3 rope"])
def test_config_of_version_4(variant, tmp_path) -> None:
    name, changes = VARIANTS[variant]
    model = random_model(name, **changes)
    model.save_pretrained(tmp_path)
    change_config(tmp_path, as_version_4)
    require_same_scores(tmp_path, scores_of(model, TOKENS))


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rope_scaling_names_its_kind_in_two_ways(key, tmp_path) -> None:
    model = random_model("llama", rope_parameters=LINEAR)
    model.save_pretrained(tmp_path)

    def change(values: dict) -> None:
        as_version_4(values)
        values["rope_scaling"] = {key: "linear", "factor": LINEAR["factor"]}

    require_same_scores(change_config(tmp_path, change), scores_of(model, TOKENS))


# What the config.json of published models have beside the sizes.
PUBLISHED = {
    "Llama 2": {
        "_name_or_path": "a/b",
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
        "pretraining_tp": 1,
        "rope_scaling": None,
        "torch_dtype": "float16",
        "use_cache": True,
    },
    "Llama 3.2": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 32,
        "initializer_range": 0.02,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": None,
        "quantization_config": None,
    },
    "head_dim is null": {"head_dim": None, "num_attention_heads": 2, "num_key_value_heads": 1},
    "nothing that has a default": {},
}


@pytest.mark.parametrize("published", PUBLISHED)
def test_config_of_published_llama(published, tmp_path) -> None:
    changes = PUBLISHED[published]
    sizes = {key: value for key, value in changes.items() if key.startswith(("num", "head"))}
    model = random_model("llama", **sizes)
    model.save_pretrained(tmp_path)

    def change(values: dict) -> None:
        as_version_4(values)
        optional = ("hidden_act", "attention_bias", "mlp_bias", "tie_word_embeddings")
        optional += ("rope_theta", "rope_scaling", "rms_norm_eps", "use_cache", "head_dim")
        for key in optional if published == "nothing that has a default" else ():
            del values[key]
        if published == "nothing that has a default":
            values["head_dim"] = 32  # not 64 / 4
        values.update(changes)

    require_same_scores(change_config(tmp_path, change), scores_of(model, TOKENS))


def test_config_of_published_qwen2(tmp_path) -> None:
    model = model_named("qwen2")
    model.save_pretrained(tmp_path)

    def change(values: dict) -> None:
        as_version_4(values)
        # 2.5 has layer_types too, and windows that are switched off.
        values |= {
            "use_sliding_window": False,
            "sliding_window": 131072,
            "max_window_layers": 1,
            "layer_types": ["full_attention"] * 2,
            "attention_dropout": 0.0,
            "attention_bias": True,  # which Qwen2 does not know: o_proj has none
        }

    require_same_scores(change_config(tmp_path, change), scores_of(model, TOKENS))


def test_bfloat16_files_are_computed_in_float32(tmp_path) -> None:
    model = random_model("llama").bfloat16()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["dtype"] == "bfloat16"
    assert next(load_checkpoint(tmp_path).parameters()).dtype == torch.float32
    wide = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    require_same_scores(tmp_path, scores_of(wide, TOKENS))


def test_dtype_can_be_chosen(folder) -> None:
    model = load_checkpoint(folder, torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    ours, theirs = our_scores(model), scores_of(random_model("llama").bfloat16(), TOKENS)
    assert ours.dtype == torch.bfloat16
    exact = scores_of(model_named("llama"), TOKENS)
    # As far from the exact scores as transformers in bfloat16, not farther.
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


def test_frequencies_in_old_files_are_passed_over(folder) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.rand(16)

    change_tensors(folder, change)
    require_same_scores(folder, scores_of(model_named("llama"), TOKENS))


def test_a_tied_weight_may_be_there_twice(tmp_path) -> None:
    model = random_model("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    weight = "model.embed_tokens.weight"
    change_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t[weight].clone()}))
    require_same_scores(tmp_path, scores_of(model, TOKENS))
    loaded = load_checkpoint(tmp_path)
    assert loaded.lm_head.weight is loaded.embed_tokens.weight, "in memory it is there once"


# How the engine learns where a text ends


def end_tokens_of(folder: Path) -> set[int]:
    return set(load_checkpoint(folder).config.eos_tokens)


@pytest.mark.parametrize(("eos", "expected"), [(5, {5}), ([5, 9], {5, 9}), (None, set())])
def test_end_tokens_of_config_json(eos, expected, folder) -> None:
    (folder / "generation_config.json").unlink()
    change_config(folder, lambda values: values.update(eos_token_id=eos))
    assert end_tokens_of(folder) == expected


@pytest.mark.parametrize(
    ("eos", "expected"), [(6, {6}), ([6, 8], {6, 8}), (None, {5}), ("left out", {5})]
)
def test_end_tokens_of_generation_config_json(eos, expected, folder) -> None:
    """As Llama 3 and Qwen2 for dialogue have it: more end tokens than in config.json."""
    change_config(folder, lambda values: values.update(eos_token_id=5))
    values = {"do_sample": True} | ({} if eos == "left out" else {"eos_token_id": eos})
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    assert end_tokens_of(folder) == expected


def test_transformers_too_ends_at_those_of_generation_config_json(folder) -> None:
    change_config(folder, lambda values: values.update(eos_token_id=5))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [6, 8]}), encoding="utf-8"
    )
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert set(loaded.generation_config.eos_token_id) == end_tokens_of(folder)


# Text


def save_tokenizer(folder: Path) -> object:
    """One word a token, as many as the model has; made here, so that nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{number}": number for number in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def test_text_goes_through_tokenizer_json(folder) -> None:
    tokenizer = save_tokenizer(folder)
    llm = LLM(folder)
    text, tokens = "w3 w14 w15 w92", [3, 14, 15, 92]
    by_text, by_tokens = llm.generate([text, tokens], progress=False)
    assert by_text.error is None
    assert by_text.token_ids == by_tokens.token_ids
    assert by_text.text == tokenizer.decode(by_tokens.token_ids[0])
    assert by_text.text.split() == [f"w{token}" for token in by_tokens.token_ids[0]]


def test_without_a_tokenizer_text_alone_is_refused() -> None:
    llm = LLM(folder_of("llama"))
    text, tokens = llm.generate(
        ["w3 w14", [3, 14]], SamplingParams(4, ignore_eos=True), progress=False
    )
    assert isinstance(text.error, ValueError)
    assert "prompt is text; this model has no tokenizer: it must be token ids" in str(text.error)
    assert text.token_ids == []
    assert tokens.error is None
    assert len(tokens.token_ids[0]) == 4
    with pytest.raises(ValueError, match="text is None"):
        _ = tokens.text
