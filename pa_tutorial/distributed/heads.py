"""Head-parallel decode (tensor parallelism): each rank has some heads of every block.

Attention never mixes heads. So each rank stores K and V of its own heads, for every token of every
sequence, and attends with its own query heads. The layers around attention are split to match, as
in Megatron-LM:

    q, k, v; up and gate    split by output: each rank computes the elements of its own heads
    out; down               split by input: each rank has a part of every sum, and one all-reduce
                            adds the parts

Block numbers mean the same on every rank, so all ranks share one block table.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3; vLLM, QKVParallelLinear and
RowParallelLinear in vllm/model_executor/layers/linear.py.
"""

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pa_tutorial.arguments import require, require_type, whole_number
from pa_tutorial.distributed.group import Group
from pa_tutorial.engine.runner import Model, ModelConfig

# The linear layers of TinyLM, then of Llama and Qwen2, by the last part of their names.
KV = ("to_k", "to_v", "k_proj", "v_proj")
COLUMNS = ("to_q", "mlp_up", "q_proj", "gate_proj", "up_proj", *KV)  # out: of a rank's own heads
ROWS = ("to_out", "mlp_down", "o_proj", "down_proj")  # in: of these; out: the sum, by an all-reduce
SCORES = ("to_vocab", "lm_head")  # all of them on every rank
STYLES = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel())
STYLES |= dict.fromkeys(SCORES, ColwiseParallel(output_layouts=Replicate()))


def heads_of(rank: int, num_ranks: int, num_heads: int, num_kv_heads: int) -> tuple[range, range]:
    """The query heads and the KV heads of one rank.

    If there are more ranks than KV heads, several ranks share one.
    """
    per_rank = num_heads // num_ranks
    kv_per_rank = max(1, num_kv_heads // num_ranks)
    first, kv_first = rank * per_rank, rank * num_kv_heads // num_ranks
    return range(first, first + per_rank), range(kv_first, kv_first + kv_per_rank)


def linear_layers(model: nn.Module) -> Iterator[tuple[str, str, nn.Linear]]:
    """Name, last part of the name, layer."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            yield name, name.rpartition(".")[2], layer


def equal_splits(num_heads: int, num_kv_heads: int, widths: Collection[int]) -> list[int]:
    """The numbers of ranks that divide the heads, and these layer widths, equally."""
    sizes = (num_heads, *widths)
    divide = [n for n in range(1, num_heads + 1) if all(size % n == 0 for size in sizes)]
    return [n for n in divide if num_kv_heads % n == 0 or n % num_kv_heads == 0]


def require_num_ranks(model: Model, num_ranks: int, name: str = "num_ranks") -> None:
    """Raise TypeError or ValueError unless the model can be split over num_ranks."""
    require_type(hasattr(model, "config"), "model", model, "a Model, such as TinyLM")
    num_ranks = whole_number(name, num_ranks)
    widths = [layer.in_features for _, last, layer in linear_layers(model) if last in ROWS]
    allowed = equal_splits(model.config.num_heads, model.config.num_kv_heads, widths)
    heads = f"{model.config.num_heads} query heads and {model.config.num_kv_heads} KV heads"
    require(num_ranks in allowed, name, num_ranks, f"one of {allowed}: the model has {heads}")


class LocalConfig:
    """The sizes that a rank sees: the model's, but with the rank's heads only."""

    def __init__(self, whole: ModelConfig, rank: int, num_ranks: int) -> None:
        self.whole = whole
        self.heads, kv_heads = heads_of(rank, num_ranks, whole.num_heads, whole.num_kv_heads)
        self.num_heads, self.num_kv_heads = len(self.heads), len(kv_heads)

    def alibi_slopes(self) -> Tensor | None:
        slopes = self.whole.alibi_slopes()
        return None if slopes is None else slopes[self.heads.start : self.heads.stop]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


def shard_heads(model: Model, group: Group) -> None:
    """Split the linear layers of a model over the ranks, in place; every rank calls this.

    Afterwards the engine sees a model with fewer heads. Rank 0 sends the parts to each rank's
    device one weight at a time, so no device needs room for the whole model. Embedding and norms
    stay whole on every rank.

    Raises ValueError, before anything is split, if the heads don't divide or a layer is unknown.
    """
    require_num_ranks(model, group.num_ranks)
    for name, last, _ in linear_layers(model):
        require(last in STYLES, "layer", name, "one that heads.py can split")
    for _, last, layer in linear_layers(model):
        if last in KV and group.num_ranks > model.config.num_kv_heads:
            repeat_heads(layer, model.config, group.num_ranks)
    plan = {name: STYLES[last] for name, last, _ in linear_layers(model)}
    parallelize_module(model, init_device_mesh(group.device.type, (group.num_ranks,)), plan)
    model.to(group.device)  # everything that wasn't split
    for _, last, layer in linear_layers(model):
        if last in ROWS and layer.bias is not None:
            add_bias_after_sum(layer)
    model.config = LocalConfig(model.config, group.rank, group.num_ranks)


def add_bias_after_sum(layer: nn.Linear) -> None:
    """Add the bias of a layer that is split by input after the sum over the ranks.

    With a bias in the sum, torch.distributed.tensor would send all weights to all ranks in every
    step instead of adding up the parts.
    """
    bias = layer.bias.to_local()
    layer.bias = None
    layer.register_forward_hook(lambda _layer, _inputs, out: out + bias)


def repeat_heads(layer: nn.Linear, config: ModelConfig, num_ranks: int) -> None:
    """With fewer KV heads than ranks, repeat each head, so that every rank gets one whole head."""
    times = num_ranks // config.num_kv_heads
    for name, weight in list(layer.named_parameters()):
        # [num_kv_heads * head_size, …] -> [num_ranks * head_size, …]
        heads = weight.unflatten(0, (config.num_kv_heads, config.head_size))
        repeated = heads.repeat_interleave(times, dim=0).flatten(0, 1)
        setattr(layer, name, nn.Parameter(repeated, requires_grad=False))
    layer.out_features *= times
