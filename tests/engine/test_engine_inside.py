"""The notebook's cells that put blocks and a kernel of the ladder inside transformers."""

import ast
import random

import nbformat
import pytest
import torch
from hf_models import VOCAB_SIZE, random_model
from run_notebooks import NOTEBOOKS
from torch import Tensor

from pa_tutorial.paging.layouts import by_token
from pa_tutorial.walk.ladder import STAGES

CELLS = ("16-inside-cache", "16-inside-attention", "16-inside-new")
NUM_NEW, BLOCK_SIZE = 12, 8


@pytest.fixture
def names() -> dict:
    """What the three cells define, behind all imports of the notebook before their end."""
    notebook = nbformat.read(NOTEBOOKS / "16_serving_engine.ipynb", as_version=4)
    sources = {cell.id: cell.source for cell in notebook.cells if cell.cell_type == "code"}
    before = list(sources.values())[: list(sources).index(CELLS[-1])]
    nodes = [node for source in before for node in ast.parse(source).body]
    imports = [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    random.seed(3)
    found: dict = {}
    exec("\n".join([*imports, *(sources[cell] for cell in CELLS)]), found)
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


# In the batch, a prompt of one token, one that fills a block, and one without padding.
@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize(
    ("stage", "lengths"),
    [("cpu", (1, 8, 21, 15)), ("paged_gather", (1, 8, 21, 15)), ("cuda_v1", (6,)), ("cpu", (1,))],
)
def test_tokens_are_those_without_blocks(names, stage, lengths, name) -> None:
    """And K and V are in the slots of the tables and nowhere else: all others hold NaN."""
    names["stage"] = STAGES[stage]
    expected = generate(random_model(name), lengths)
    assert len(expected[:, -NUM_NEW:].unique()) > NUM_NEW // 2, "varied"
    model = random_model(name)
    model.set_attn_implementation("paged_attention")
    paged = names["new_cache"](model, prompts(lengths)[1], block_size=BLOCK_SIZE)
    assert torch.equal(generate(model, lengths, past_key_values=paged), expected)
    assert paged.pool.layout.name == STAGES[stage].layout
    # The last token is never fed back.
    assert [table.num_tokens for table in paged.tables] == [n + NUM_NEW - 1 for n in lengths]
    owned = torch.zeros(paged.pool.layout.num_blocks, BLOCK_SIZE, dtype=torch.bool)
    for table in paged.tables:
        for position in range(table.num_tokens):
            slot = table.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
            assert not owned[slot], "two tokens in one slot"
            owned[slot] = True
    for pool in zip(paged.pool.k, paged.pool.v, strict=True):
        for tokens in by_token(*pool):
            numbers = tokens.flatten(2)  # [num_blocks, block_size, numbers of a token]
            assert torch.equal(numbers.isfinite().all(dim=-1), owned)
            assert torch.equal(numbers.isnan().all(dim=-1), ~owned)
