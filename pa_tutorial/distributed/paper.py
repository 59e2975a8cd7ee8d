"""Decode steps over many devices, on paper: from bytes, bandwidths and links to milliseconds.

A step computes one token for each sequence of a batch. Its time on each of heads x contexts equal
devices is max(bytes read / bandwidth, operations / operations a second) + communication.

- `heads` devices divide the heads, the MLP and the vocabulary projection between them (tensor
  parallelism); embedding and norms are on each. With more devices than KV heads, a KV head is on
  several devices.
- `contexts` devices divide the tokens of every sequence, block by block; weights are on each.

Counted: every weight of a linear layer or a norm is read once, a row of the embedding for each
sequence, K and V of each token once; a multiply and an add for each weight and sequence, and for
each element of K and V and query head; all-reduces and all-gathers over rings.
Not counted: starting kernels, what is written, activations, softmax. Nothing overlaps, all devices
hang on one kind of link, and no trees and no switches that add up (NVLink SHARP). So the reading is
a lower bound, and with many devices the communication is an upper one.
"""

from dataclasses import dataclass

from pa_tutorial.arguments import require

FLOAT32 = 4  # bytes: maxima, sums and outputs are merged in float32
USABLE = 0.9  # of a device's memory: gpu_memory_utilization in vLLM; the rest is for activations
GIB = 2**30


@dataclass(frozen=True)
class Device:
    """bandwidth: bytes/s of its memory. memory: bytes. flops: operations a second, 16 bits."""

    name: str
    bandwidth: float
    memory: float
    flops: float


@dataclass(frozen=True)
class Link:
    """bandwidth: bytes/s that one device sends while it receives as many. latency: s for a hop."""

    name: str
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class ModelSizes:
    """A decoder as in Llama. mlp_size: width of the hidden layer of the MLP, with its gate."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    mlp_size: int
    vocab_size: int
    bytes_per_number: int = 2


# NVIDIA's data sheets of A100, H100 and H200, SXM; operations without sparsity. The sheets write
# 80 and 141 GB; what the driver reports is about as many GiB.
A100 = Device("A100", 2.039e12, 80 * GIB, 312e12)
H100 = Device("H100", 3.35e12, 80 * GIB, 989.5e12)
H200 = Device("H200", 4.8e12, 141 * GIB, 989.5e12)

# Bandwidths: half of what the sheets give for both directions; of InfiniBand one port a device.
# Latencies are assumptions: those with which NCCL chooses its ring (protocol LL: NVLink, PCI and
# network in hwLat, src/graph/tuning.cc). Other protocols of NCCL take two to six times as long.
NVLINK_3 = Link("NVLink 3", 300e9, 0.6e-6)
NVLINK_4 = Link("NVLink 4", 450e9, 0.6e-6)
PCIE_4 = Link("PCIe 4 x16", 32e9, 1.0e-6)
INFINIBAND_NDR = Link("InfiniBand NDR", 50e9, 2.7e-6)

LLAMA_3_1_8B = ModelSizes("Llama 3.1 8B", 32, 32, 8, 128, 4096, 14336, 128256)
LLAMA_3_1_70B = ModelSizes("Llama 3.1 70B", 80, 64, 8, 128, 8192, 28672, 128256)
LLAMA_2_7B = ModelSizes("Llama 2 7B", 32, 32, 32, 128, 4096, 11008, 32000)  # multi-head attention


def head_splits(model: ModelSizes) -> list[int]:
    """Over how many devices the heads can be divided, with equal shares."""

    def is_equal(n: int) -> bool:
        shared = (model.num_heads, model.mlp_size, model.vocab_size)
        kv_heads = model.num_kv_heads
        return all(size % n == 0 for size in shared) and (kv_heads % n == 0 or n % kv_heads == 0)

    return [n for n in range(1, model.num_heads + 1) if is_equal(n)]


def require_split(model: ModelSizes, heads: int, contexts: int) -> None:
    allowed = head_splits(model)
    require(heads in allowed, "heads", heads, f"one of {allowed} for {model.name}")
    require(contexts >= 1, "contexts", contexts, "at least 1")


def require_batch(batch: int, context: int) -> None:
    require(batch >= 1, "batch", batch, "at least 1")
    require(context >= 1, "context", context, "at least 1")


# Bytes in a device's memory ---------------------------------------------------------------------


def kv_heads_per_device(model: ModelSizes, heads: int) -> int:
    return max(1, model.num_kv_heads // heads)


def kv_bytes_per_token(model: ModelSizes, heads: int = 1) -> int:
    """K and V of one token, in all layers, on one device."""
    in_a_layer = 2 * kv_heads_per_device(model, heads) * model.head_size
    return model.num_layers * in_a_layer * model.bytes_per_number


def matrix_numbers(model: ModelSizes, heads: int = 1) -> int:
    """Weights of the linear layers on one device, the vocabulary projection included."""
    q_and_out = 2 * model.num_heads // heads * model.head_size
    k_and_v = 2 * kv_heads_per_device(model, heads) * model.head_size
    mlp = 3 * model.mlp_size // heads  # gate, up and down
    rows = model.num_layers * (q_and_out + k_and_v + mlp) + model.vocab_size // heads
    return rows * model.hidden_size


def weight_bytes(model: ModelSizes, heads: int = 1) -> int:
    """What one device holds."""
    norms = (2 * model.num_layers + 1) * model.hidden_size
    embedding = model.vocab_size * model.hidden_size
    return (matrix_numbers(model, heads) + norms + embedding) * model.bytes_per_number


def weight_bytes_read(model: ModelSizes, batch: int, heads: int = 1) -> int:
    """In one step, by one device: of the embedding, only a row for each sequence."""
    rows_left_out = model.vocab_size - batch
    return weight_bytes(model, heads) - rows_left_out * model.hidden_size * model.bytes_per_number


# Communication ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collective:
    """One that every device of a ring takes part in, `times` times in a step.

    num_bytes  of the result, which each device has in the end
    passes     around the ring: 2 for an all-reduce, 1 for an all-gather
    """

    what: str
    times: int
    num_bytes: int
    devices: int
    passes: int

    @property
    def hops(self) -> int:
        return self.passes * (self.devices - 1)

    @property
    def bytes_sent(self) -> float:
        """By each device: with each hop, one n-th of the result."""
        return self.hops * self.num_bytes / self.devices

    def seconds(self, link: Link) -> float:
        # all-reduce of B bytes over n devices: 2 (n - 1) / n * B / bandwidth + 2 (n - 1) * latency
        return self.bytes_sent / link.bandwidth + self.hops * link.latency


def collectives(
    model: ModelSizes, batch: int, heads: int = 1, contexts: int = 1
) -> list[Collective]:
    """All that a step sends. The context does not appear in it."""
    require_split(model, heads, contexts)
    hidden = batch * model.hidden_size * model.bytes_per_number
    scores = batch * model.vocab_size * model.bytes_per_number
    parts = batch * model.num_heads // heads * FLOAT32  # one float32 a sequence and head
    layers = model.num_layers
    return [
        Collective("sum after attention and after the MLP", 2 * layers, hidden, heads, 2),
        Collective("gather the scores of the vocabulary", 1, scores, heads, 1),
        Collective("maximum of the scores", layers, parts, contexts, 2),
        Collective("sum and output", layers, parts * (1 + model.head_size), contexts, 2),
    ]


def bytes_on_the_wire(model: ModelSizes, batch: int, heads: int = 1, contexts: int = 1) -> float:
    """Sent in one step by each device."""
    parts = collectives(model, batch, heads, contexts)
    return sum(part.times * part.bytes_sent for part in parts)


# Time -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Seconds of one decode step: reading weights, reading K and V, computing, talking."""

    weights: float
    kv: float
    computing: float
    talking: float

    @property
    def reading(self) -> float:
        return self.weights + self.kv

    @property
    def total(self) -> float:
        return max(self.reading, self.computing) + self.talking


def kv_seconds(
    model: ModelSizes, device: Device, batch: int, context: int, heads: int, contexts: int
) -> tuple[float, float]:
    """To read K and V of the batch on one device, and to compute with them."""
    require_split(model, heads, contexts)
    require_batch(batch, context)
    tokens = batch * context / contexts
    # a multiply and an add, for q . k and for weight * v
    flops = 4 * tokens * model.num_layers * model.num_heads // heads * model.head_size
    return tokens * kv_bytes_per_token(model, heads) / device.bandwidth, flops / device.flops


def attention_time(
    model: ModelSizes, device: Device, batch: int, context: int, heads: int = 1, contexts: int = 1
) -> float:
    """Seconds of attention alone, in all layers, without communication."""
    return max(kv_seconds(model, device, batch, context, heads, contexts))


def decode_time(
    model: ModelSizes,
    device: Device,
    link: Link,
    batch: int,
    context: int,
    heads: int = 1,
    contexts: int = 1,
) -> Times:
    """Of one step for `batch` sequences of `context` tokens each, over heads x contexts devices.

    Raises ValueError for a split with unequal shares.
    """
    reading_kv, computing_kv = kv_seconds(model, device, batch, context, heads, contexts)
    computing = 2 * batch * matrix_numbers(model, heads) / device.flops
    parts = collectives(model, batch, heads, contexts)
    return Times(
        weights=weight_bytes_read(model, batch, heads) / device.bandwidth,
        kv=reading_kv,
        computing=computing + computing_kv,
        talking=sum(part.times * part.seconds(link) for part in parts),
    )


# Memory, and the best split ---------------------------------------------------------------------


def num_users(
    model: ModelSizes,
    device: Device,
    context: int,
    shared_tokens: int = 0,
    heads: int = 1,
    contexts: int = 1,
    block_size: int = 16,
    usable: float = USABLE,
) -> int:
    """How many sequences of `context` tokens fit beside the weights; 0 if these do not fit.

    shared_tokens  the first tokens of all sequences are the same, and their full blocks are held
                   once. Less than context: a sequence's newest token is its own
    contexts       logical block i of every sequence is on device i % contexts
    """
    require_split(model, heads, contexts)
    require_batch(1, context)
    require(block_size >= 1, "block_size", block_size, "at least 1")
    require(0 <= shared_tokens < context, "shared_tokens", shared_tokens, f"0 to {context - 1}")
    free = usable * device.memory - weight_bytes(model, heads)
    pool = max(0, int(free // (block_size * kv_bytes_per_token(model, heads))))
    num_shared, num_blocks = shared_tokens // block_size, -(-context // block_size)
    room = []
    for rank in range(contexts):
        shared = len(range(rank, num_shared, contexts))
        own = len(range(rank, num_blocks, contexts)) - shared
        if own:  # of one sequence; the device of the last block has some, and the most blocks
            room.append(max(0, pool - shared) // own)
    return min(room)


def splits(model: ModelSizes, num_devices: int) -> list[tuple[int, int]]:
    """Every (heads, contexts) that takes all the devices."""
    require(num_devices >= 1, "num_devices", num_devices, "at least 1")
    return [(n, num_devices // n) for n in head_splits(model) if num_devices % n == 0]


def best_split(
    model: ModelSizes, device: Device, link: Link, batch: int, context: int, num_devices: int
) -> tuple[int, int] | None:
    """The (heads, contexts) with the fastest step, or None if no split holds weights, K and V."""
    require_batch(batch, context)
    fitting = [
        (heads, contexts)
        for heads, contexts in splits(model, num_devices)
        if num_users(model, device, context, heads=heads, contexts=contexts) >= batch
    ]
    return min(
        fitting,
        key=lambda split: decode_time(model, device, link, batch, context, *split).total,
        default=None,
    )
