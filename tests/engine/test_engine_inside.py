"""The notebook's cells that put blocks and a kernel of the ladder inside transformers."""

import ast
import random
from collections.abc import Callable
from functools import cache

import nbformat
import pytest
import torch
from hf_models import VOCAB_SIZE, random_model
from run_notebooks import NOTEBOOKS
from torch import Tensor

from pa_tutorial.paging.layouts import by_token
from pa_tutorial.walk.ladder import STAGES

CELLS = ("16-inside-cache", "16-inside-attention", "16-inside-new")
# Blocks of 8: in the batch, a prompt of one token, one that fills a block, and one without padding.
NUM_NEW, BLOCK_SIZE = 12, 8
LENGTHS = {"one prompt": (21,), "one token": (1,), "a batch": (1, 8, 21, 15)}
MODELS = ("llama", "qwen2")


@cache
def code() -> str:
    """The three cells, behind all imports of the notebook that stand before their end."""
    notebook = nbformat.read(NOTEBOOKS / "16_serving_engine.ipynb", as_version=4)
    sources = {cell.id: cell.source for cell in notebook.cells if cell.cell_type == "code"}
    before = list(sources.values())[: list(sources).index(CELLS[-1])]
    nodes = [node for source in before for node in ast.parse(source).body]
    imports = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return "\n".join([*imports, *(sources[cell] for cell in CELLS)])


@pytest.fixture
def names() -> dict:
    """What the cells define."""
    random.seed(3)
    found: dict = {}
    exec(code(), found)
    return found


def prompts(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Random tokens, padded on the left: input_ids and attention_mask."""
    width = max(lengths)
    draw = torch.Generator().manual_seed(2)
    mask = (torch.arange(width) >= width - torch.tensor(lengths)[:, None]).long()
    return torch.randint(3, VOCAB_SIZE, mask.shape, generator=draw) * mask, mask


def generate(model: torch.nn.Module, lengths: tuple[int, ...], **options: object) -> Tensor:
    input_ids, mask = prompts(lengths)
    options |= {"max_new_tokens": NUM_NEW, "do_sample": False, "eos_token_id": None}
    return model.generate(input_ids, attention_mask=mask, **options)


@cache
def plain_tokens(name: str, lengths: tuple[int, ...]) -> Tensor:
    return generate(random_model(name), lengths)


def paged_tokens(names: dict, name: str, lengths: tuple[int, ...]) -> tuple[Tensor, object]:
    """The tokens with the cells' cache and attention; and the cache."""
    model = random_model(name)
    model.set_attn_implementation("paged_attention")
    paged = names["new_cache"](model, prompts(lengths)[1], block_size=BLOCK_SIZE)
    return generate(model, lengths, past_key_values=paged), paged


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_tokens_are_those_without_blocks(names, name, lengths) -> None:
    tokens, paged = paged_tokens(names, name, lengths)
    expected = plain_tokens(name, lengths)
    assert len(expected[:, -NUM_NEW:].unique()) > NUM_NEW // 2, "varied"
    assert torch.equal(tokens, expected)
    # The last token is never fed back.
    assert [table.num_tokens for table in paged.tables] == [n + NUM_NEW - 1 for n in lengths]


@pytest.mark.parametrize("stage", ["cuda_v1", "paged_gather", "paged_online"])
def test_other_stages_can_decode(names, stage) -> None:
    names["stage"] = STAGES[stage]
    lengths = (6,) if stage.startswith("cuda") else LENGTHS["a batch"]
    tokens, paged = paged_tokens(names, "llama", lengths)
    assert paged.pool.layout.name == STAGES[stage].layout
    assert torch.equal(tokens, plain_tokens("llama", lengths))


@pytest.mark.parametrize("name", MODELS)
def test_every_decode_step_is_one_call_of_the_stage_a_layer(names, name, monkeypatch) -> None:
    calls = []

    def counted(q: Tensor, *arguments: object) -> Tensor:
        calls.append(tuple(q.shape))
        return STAGES["cpu"].function(q, *arguments)

    stage = STAGES["paged_online"]  # the same layout; a Stage is frozen: change what it holds
    monkeypatch.setitem(vars(stage), "at", counted)
    names["stage"] = stage
    model = random_model(name)
    lengths = LENGTHS["a batch"]
    tokens, _ = paged_tokens(names, name, lengths)
    assert torch.equal(tokens, plain_tokens(name, lengths))
    heads = (len(lengths), model.config.num_attention_heads, 32)
    assert calls == [heads] * (NUM_NEW - 1) * model.config.num_hidden_layers


@pytest.mark.parametrize("name", MODELS)
def test_k_and_v_are_in_the_slots_of_the_tables_and_nowhere_else(names, name) -> None:
    _, paged = paged_tokens(names, name, LENGTHS["a batch"])
    slots = [
        table.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for table in paged.tables
        for position in range(table.num_tokens)
    ]
    assert len(set(slots)) == len(slots) > 60
    owned = torch.zeros(paged.pool.layout.num_blocks * BLOCK_SIZE, dtype=torch.bool)
    owned[slots] = True
    for pool in zip(paged.pool.k, paged.pool.v, strict=True):
        for tokens in by_token(*pool):
            numbers = tokens.flatten(2).flatten(0, 1)  # [slots, numbers of a token]
            assert torch.equal(numbers.isfinite().all(dim=1), owned)
            assert torch.equal(numbers.isnan().all(dim=1), ~owned)


def test_blocks_are_shuffled(names) -> None:
    _, paged = paged_tokens(names, "llama", LENGTHS["a batch"])
    blocks = [block for table in paged.tables for block in table.blocks]
    assert len(set(blocks)) == len(blocks)
    assert blocks not in (sorted(blocks), sorted(blocks, reverse=True))


# These checks can fail: what is broken in the cache before a decode step shows in the tokens.


def broken_tokens(names: dict, name: str, change: Callable[[object, int], None]) -> Tensor:
    """The tokens if something happens to the cache in every decode step, before attention."""

    class Broken(names["PagedCache"]):
        def update(self, key: Tensor, value: Tensor, layer: int, *arguments: object) -> tuple:
            returned = super().update(key, value, layer, *arguments)
            if key.shape[2] == 1:
                change(self, layer)
            return returned

    names["PagedCache"] = Broken
    return paged_tokens(names, name, LENGTHS["one prompt"])[0]


def alias(paged: object, _: int) -> None:
    blocks = paged.tables[0].blocks
    blocks[1] = blocks[0]


def poison_k(paged: object, layer: int) -> None:
    paged.pool.k[layer][paged.tables[0].blocks[1]] = float("nan")


def poison_v(paged: object, layer: int) -> None:
    paged.pool.v[layer][paged.tables[0].blocks[0]] = float("nan")


def foreign_k(paged: object, layer: int) -> None:
    paged.pool.k[layer][paged.tables[0].blocks[1]] = 1.0


def poison_others(paged: object, layer: int) -> None:
    foreign_blocks = set(range(paged.pool.layout.num_blocks)) - set(paged.tables[0].blocks)
    for pool in (paged.pool.k[layer], paged.pool.v[layer]):
        pool[sorted(foreign_blocks)] = 1e9


def swap(paged: object, _: int) -> None:
    blocks = paged.tables[0].blocks
    blocks[0], blocks[1] = blocks[1], blocks[0]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("change", [alias, poison_k, poison_v, foreign_k])
def test_a_broken_cache_changes_the_tokens(names, name, change) -> None:
    broken = broken_tokens(names, name, change)
    expected = plain_tokens(name, LENGTHS["one prompt"])
    first = -NUM_NEW + 1  # the first new token comes from prefill
    assert torch.equal(broken[:, :first], expected[:, :first])
    assert not torch.equal(broken, expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("change", [swap, poison_others])
def test_what_attention_must_not_see_changes_nothing(names, name, change) -> None:
    """Full blocks may stand in any order: the position of a token is in its K already."""
    broken = broken_tokens(names, name, change)
    assert torch.equal(broken, plain_tokens(name, LENGTHS["one prompt"]))
