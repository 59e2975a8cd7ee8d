"""Estimated time of decode steps over many devices, from bytes, bandwidths and links.

A step computes one token per sequence of a batch. On heads x contexts equal devices it takes
max(bytes read / bandwidth, operations / operations per second) + communication.

- `heads` devices divide heads, MLP and vocabulary projection among them (tensor parallelism);
  each has the whole embedding and all norms. If there are more devices than KV heads, each has one.
- `contexts` devices divide the tokens of every sequence, block by block; each has all weights.

Counted: reading every weight of a linear layer or a norm once, one vector of the embedding per
sequence, and K and V once; two operations per weight and sequence, and four per token, query head
and element of a head; all-reduces and all-gathers over rings.
Not counted: launching kernels, writing, activations, norms, softmax. Nothing overlaps. One kind of
link connects all devices (a server has 8 H100s on NVLink), and sums don't use trees or switches
(NVLink SHARP). So the times for reading and computing are lower bounds; the time for communication,
with many devices, isn't.
"""

from typing import NamedTuple

from pa_tutorial.arguments import require, require_type, whole_number
from pa_tutorial.distributed.heads import equal_splits
from pa_tutorial.engine.model import LlamaConfig

ITEMSIZE = 2  # bytes per element
FLOAT32 = 4  # bytes; partial results of attention are merged in float32


class Device(NamedTuple):
    """bandwidth: bytes/s of its memory. flops: 16-bit operations per second."""

    bandwidth: float
    flops: float


class Link(NamedTuple):
    """bandwidth: bytes/s that a device sends while it receives as many. latency: s per hop."""

    bandwidth: float
    latency: float

    def ring_seconds(self, num_bytes: float, devices: int, passes: int) -> float:
        """Time of a collective on a ring of devices.

        num_bytes  of the result, which each device has at the end
        passes     passes around the ring: 2 for an all-reduce, 1 for an all-gather
        """
        hops = passes * (devices - 1)  # each carries one piece of `devices`
        return hops * (num_bytes / devices / self.bandwidth + self.latency)


# NVIDIA, data sheet "H100 Tensor Core GPU", column SXM: operations without sparsity; for a link,
# half the figure for both directions. The latency is an assumption: NCCL predicts rings of small
# messages with it (hwLat in src/graph/tuning.cc, protocol LL).
H100 = Device(bandwidth=3.35e12, flops=989.5e12)
NVLINK_4 = Link(bandwidth=450e9, latency=0.6e-6)
LLAMA_3_1_70B = LlamaConfig(80, 64, 8, 128, 8192, 28672, 128256, max_len=131072)


def matrix_numbers(model: LlamaConfig, heads: int) -> int:
    """Weights of the linear layers, the vocabulary projection included, on one device."""
    kv_heads = max(1, model.num_kv_heads // heads)
    projections = 2 * (model.num_heads // heads + kv_heads) * model.head_size  # q, out; k, v
    mlp = 3 * model.mlp_size // heads  # gate, up and down
    rows = model.num_layers * (projections + mlp) + model.vocab_size // heads
    return rows * model.hidden_size


def send_seconds(model: LlamaConfig, link: Link, batch: int, heads: int, contexts: int) -> float:
    """Time to send everything in a step. It doesn't depend on the length of the context."""
    hidden, scores = (batch * n * ITEMSIZE for n in (model.hidden_size, model.vocab_size))
    merged = batch * model.num_heads // heads * FLOAT32  # one number per sequence and head
    layer = 2 * link.ring_seconds(hidden, heads, passes=2)  # join the heads, join the MLP
    layer += link.ring_seconds(merged, contexts, passes=2)  # largest score
    layer += link.ring_seconds(merged * (1 + model.head_size), contexts, passes=2)  # sum and output
    return model.num_layers * layer + link.ring_seconds(scores, heads, passes=1)


class Times(NamedTuple):
    """Seconds of one step for reading weights, K and V, for computing and for sending."""

    reading: float
    computing: float
    sending: float

    @property
    def total(self) -> float:
        return max(self.reading, self.computing) + self.sending


def decode_time(
    model: LlamaConfig,
    device: Device,
    link: Link,
    batch: int,
    context: int,
    heads: int = 1,
    contexts: int = 1,
) -> Times:
    """Time of one step for `batch` sequences of `context` tokens, over heads x contexts devices.

    Raises TypeError or ValueError for anything but whole numbers of at least 1, and if the heads
    can't be split equally.
    """
    for name, given, kind in (
        ("model", model, LlamaConfig),
        ("device", device, Device),
        ("link", link, Link),
    ):
        require_type(isinstance(given, kind), name, given, f"a {kind.__name__}")
    numbers = {"batch": batch, "context": context, "contexts": contexts}
    batch, context, contexts = (whole_number(n, numbers[n], least=1) for n in numbers)
    heads = whole_number("heads", heads)
    allowed = equal_splits(model.num_heads, model.num_kv_heads, (model.mlp_size, model.vocab_size))
    require(heads in allowed, "heads", heads, f"one of {allowed}")
    matrices = matrix_numbers(model, heads)
    norms_and_embedding = (2 * model.num_layers + 1 + batch) * model.hidden_size
    places = batch * context / contexts * model.num_layers * model.head_size  # of one head
    k_and_v = 2 * places * max(1, model.num_kv_heads // heads)
    return Times(
        reading=(matrices + norms_and_embedding + k_and_v) * ITEMSIZE / device.bandwidth,
        computing=(2 * batch * matrices + 4 * places * (model.num_heads // heads)) / device.flops,
        sending=send_seconds(model, link, batch, heads, contexts),
    )
