"""Checkpoints that cannot be loaded: the message names the file and what is wrong with it."""

from pathlib import Path

import pytest
from hf_models import change_config, change_tensors, model_named

from pa_tutorial.engine import LLM, CheckpointError, load_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama checkpoint of one's own, to be changed."""
    model_named("llama").save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, r"config.json: model_type is mistral; .*llama.*qwen2"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu; it must be silu"),
        ({"use_sliding_window": True}, "use_sliding_window is True.* no sliding window"),
        ({"sliding_window": 4096}, "sliding_window is 4096; it must be null.* no sliding window"),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4}},
            "quantization_config is .*awq.*; it must be null: quantized weights",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "rope_type is yarn; it must be one of .*linear",
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, "config.json has no 'factor'"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5",
        ),
        ({"hidden_size": "64"}, "config.json: .*hidden_size"),
        ({"num_attention_heads": 0}, "config.json: .*num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "config.json: .*num_key_value_heads is 3"),
    ],
)
def test_a_config_that_this_model_cannot_follow(change, message, folder) -> None:
    change_config(folder, lambda values: values.update(change))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "key",
    ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
     "intermediate_size", "max_position_embeddings"],
)  # fmt: skip
def test_a_missing_key_is_named(key, folder) -> None:
    change_config(folder, lambda values: values.pop(key))
    with pytest.raises(CheckpointError, match=f"config.json has no '{key}'"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"", b"[1, 2]", b"3", b"\xff\xfe{}"])
def test_a_file_that_is_no_json_object(name, content, folder) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"/{name} .*JSON"):
        load_checkpoint(folder)


def test_a_folder_that_is_not_there(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere has no config.json"):
        LLM(tmp_path / "nowhere")


def test_a_folder_without_weights(folder) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model.safetensors"):
        load_checkpoint(folder)


def test_a_truncated_file(folder) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read"):
        load_checkpoint(folder)


def test_a_missing_shard(tmp_path) -> None:
    model_named("llama").save_pretrained(tmp_path, max_shard_size="100KB")
    gone = sorted(tmp_path.glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"has no {gone.name}"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": 3}', "[]"])
def test_an_index_without_its_map(content, folder) -> None:
    (folder / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"/model.safetensors.index.json "):
        load_checkpoint(folder)


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(UP), r"layers.1.mlp.up_proj.weight is missing"),
        (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
        (
            lambda t: t.update({UP: t[UP][:-1].clone()}),
            r"layers.1.mlp.up_proj.weight is \[95, 64\], and must be \[96, 64\]",
        ),
        (
            lambda t: t.update({"model.layers.2.mlp.up_proj.weight": t[UP].clone()}),
            "layers.2.mlp.up_proj.weight has no place in the model",
        ),
        (
            lambda t: [t.pop(key) for key in list(t) if "layers.0." in key],
            "is missing; and 4 more",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message, folder) -> None:
    change_tensors(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_broken_tokenizer_is_named(content, folder) -> None:
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer.json cannot be read"):
        LLM(folder)
