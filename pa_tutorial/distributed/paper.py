"""Decode steps over many devices, on paper: from bytes, bandwidths and links to seconds.

A step computes one token for each sequence of a batch. Its time on heads x contexts equal devices
is max(bytes read / bandwidth, operations / operations a second) + communication.

- `heads` devices divide heads, MLP and vocabulary projection between them (tensor parallelism);
  embedding and norms are on each. Where they are more than the KV heads, each has one of these.
- `contexts` devices divide the tokens of every sequence, block by block; weights are on each.

Counted: every weight of a linear layer or a norm is read once, of the embedding a row a sequence,
K and V once; two operations for each weight and sequence, and four for each token, query head and
element of a head; all-reduces and all-gathers over rings.
Not counted: starting kernels, writing, activations, norms, softmax. Nothing overlaps. One kind of
link joins all devices (of H100s, a server has 8 on NVLink), and nothing adds up in
trees or in switches (NVLink SHARP). So reading and computing are lower bounds; communication, with
many devices, is not.
"""

from dataclasses import dataclass

from pa_tutorial.arguments import require
from pa_tutorial.distributed.heads import equal_splits
from pa_tutorial.engine.model import LlamaConfig

ITEMSIZE = 2  # bytes of a number
FLOAT32 = 4  # what attention has found is merged in float32


@dataclass(frozen=True)
class Device:
    """bandwidth: bytes/s of its memory. flops: operations a second, 16 bits."""

    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Link:
    """bandwidth: bytes/s that one device sends while it receives as many. latency: s for a hop."""

    bandwidth: float
    latency: float


# NVIDIA, data sheet "H100 Tensor Core GPU", column SXM: operations without sparsity; of a link
# half of what it gives for both directions. The latency is an assumption: that with which NCCL
# itself predicts a ring of small messages (hwLat in src/graph/tuning.cc, protocol LL).
H100 = Device(bandwidth=3.35e12, flops=989.5e12)
NVLINK_4 = Link(bandwidth=450e9, latency=0.6e-6)
LLAMA_3_1_70B = LlamaConfig(80, 64, 8, 128, 8192, 28672, 128256, max_len=131072)


def require_sizes(model: LlamaConfig, heads: int, **sizes: int) -> None:
    divided = model.mlp_size, model.vocab_size
    allowed = equal_splits(model.num_heads, model.num_kv_heads, divided)
    require(heads in allowed, "heads", heads, f"one of {allowed}")
    for name, number in sizes.items():
        require(number >= 1, name, number, "at least 1")


def kv_heads_per_device(model: LlamaConfig, heads: int) -> int:
    return max(1, model.num_kv_heads // heads)


def matrix_numbers(model: LlamaConfig, heads: int) -> int:
    """Weights of the linear layers, the vocabulary projection included."""
    q_and_out = 2 * model.num_heads // heads * model.head_size
    k_and_v = 2 * kv_heads_per_device(model, heads) * model.head_size
    mlp = 3 * model.mlp_size // heads  # gate, up and down
    rows = model.num_layers * (q_and_out + k_and_v + mlp) + model.vocab_size // heads
    return rows * model.hidden_size


@dataclass(frozen=True)
class Collective:
    """What the devices of a ring do together, `times` times in a step.

    num_bytes  of the result, which each device has in the end
    passes     around the ring: 2 for an all-reduce, 1 for an all-gather
    """

    times: int
    num_bytes: int
    devices: int
    passes: int

    @property
    def all_hops(self) -> int:
        """Of a step; an all-reduce of B bytes over n devices: 2 (n - 1), each of B / n bytes."""
        return self.times * self.passes * (self.devices - 1)

    def seconds(self, link: Link) -> float:
        """Of a step."""
        return self.all_hops * (self.num_bytes / self.devices / link.bandwidth + link.latency)


def collectives(model: LlamaConfig, batch: int, heads: int, contexts: int) -> list[Collective]:
    """All that a step sends. The length of the context is nowhere in it."""
    layers, numbers = model.num_layers, batch * ITEMSIZE
    merged = batch * model.num_heads // heads * FLOAT32  # a number for each sequence and head
    return [
        Collective(2 * layers, numbers * model.hidden_size, heads, 2),  # join heads, join the MLP
        Collective(1, numbers * model.vocab_size, heads, 1),  # gather the scores of all tokens
        Collective(layers, merged, contexts, 2),  # largest score
        Collective(layers, merged * (1 + model.head_size), contexts, 2),  # sum and output
    ]


@dataclass(frozen=True)
class Times:
    """Seconds of one step: reading weights, K and V; computing; talking."""

    reading: float
    computing: float
    talking: float

    @property
    def total(self) -> float:
        return max(self.reading, self.computing) + self.talking


def decode_time(
    model: LlamaConfig,
    device: Device,
    link: Link,
    batch: int,
    context: int,
    heads: int = 1,
    contexts: int = 1,
) -> Times:
    """Of one step for `batch` sequences of `context` tokens, over heads x contexts devices.

    Raises ValueError for a split with unequal shares.
    """
    require_sizes(model, heads, contexts=contexts, batch=batch, context=context)
    matrices = matrix_numbers(model, heads)
    norms_and_embedding = (2 * model.num_layers + 1 + batch) * model.hidden_size
    places = batch * context / contexts * model.num_layers * model.head_size  # of one head
    numbers = matrices + norms_and_embedding + 2 * places * kv_heads_per_device(model, heads)
    return Times(
        reading=numbers * ITEMSIZE / device.bandwidth,
        computing=(2 * batch * matrices + 4 * places * (model.num_heads // heads)) / device.flops,
        talking=sum(part.seconds(link) for part in collectives(model, batch, heads, contexts)),
    )
