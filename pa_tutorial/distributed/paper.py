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
from pa_tutorial.distributed.sizes import Device, Link, ModelSizes

FLOAT32 = 4  # bytes: what attention has found is merged in float32
USABLE = 0.9  # of a device's memory: gpu_memory_utilization in vLLM; the rest is for activations


def head_splits(model: ModelSizes) -> list[int]:
    """Over how many devices the heads can be divided with equal shares."""
    divided = (model.num_heads, model.mlp_size, model.vocab_size)
    kv_heads = model.num_kv_heads
    return [
        n
        for n in range(1, model.num_heads + 1)
        if all(size % n == 0 for size in divided) and (kv_heads % n == 0 or n % kv_heads == 0)
    ]


def require_sizes(
    model: ModelSizes, heads: int = 1, contexts: int = 1, batch: int = 1, context: int = 1
) -> None:
    allowed = head_splits(model)
    require(heads in allowed, "heads", heads, f"one of {allowed} for {model.name}")
    for name, number in {"contexts": contexts, "batch": batch, "context": context}.items():
        require(number >= 1, name, number, "at least 1")


# Bytes and operations of one device -------------------------------------------------------------


def kv_heads_per_device(model: ModelSizes, heads: int) -> int:
    return max(1, model.num_kv_heads // heads)


def kv_bytes_per_token(model: ModelSizes, heads: int = 1) -> int:
    """K and V of one token, in all layers."""
    numbers = 2 * model.num_layers * kv_heads_per_device(model, heads) * model.head_size
    return numbers * model.bytes_per_number


def matrix_numbers(model: ModelSizes, heads: int = 1) -> int:
    """Weights of the linear layers, the vocabulary projection included."""
    q_and_out = 2 * model.num_heads // heads * model.head_size
    k_and_v = 2 * kv_heads_per_device(model, heads) * model.head_size
    mlp = 3 * model.mlp_size // heads  # gate, up and down
    rows = model.num_layers * (q_and_out + k_and_v + mlp) + model.vocab_size // heads
    return rows * model.hidden_size


def weight_bytes(model: ModelSizes, heads: int = 1, embedding_rows: int | None = None) -> int:
    """Matrices, norms and rows of the embedding: all that it holds, or those that a step reads."""
    rows = model.vocab_size if embedding_rows is None else embedding_rows
    norms = 2 * model.num_layers + 1
    numbers = matrix_numbers(model, heads) + (norms + rows) * model.hidden_size
    return numbers * model.bytes_per_number


# Communication ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collective:
    """What the devices of a ring do together, `times` times in a step.

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
        """By one device: an n-th of the result with each hop."""
        return self.hops * self.num_bytes / self.devices

    def seconds(self, link: Link) -> float:
        # all-reduce of B bytes over n devices: 2 (n - 1) / n * B / bandwidth + 2 (n - 1) * latency
        return self.bytes_sent / link.bandwidth + self.hops * link.latency


def collectives(
    model: ModelSizes, batch: int, heads: int = 1, contexts: int = 1
) -> list[Collective]:
    """All that a step sends. The length of the context is nowhere in it."""
    require_sizes(model, heads, contexts, batch)
    layers, numbers = model.num_layers, batch * model.bytes_per_number
    merged = batch * model.num_heads // heads * FLOAT32  # a number for each sequence and head
    return [
        Collective("join heads, join the MLP", 2 * layers, numbers * model.hidden_size, heads, 2),
        Collective("gather the scores of all tokens", 1, numbers * model.vocab_size, heads, 1),
        Collective("largest score", layers, merged, contexts, 2),
        Collective("sum and output", layers, merged * (1 + model.head_size), contexts, 2),
    ]


def bytes_on_the_wire(model: ModelSizes, batch: int, heads: int = 1, contexts: int = 1) -> float:
    """Sent in one step by each device."""
    parts = collectives(model, batch, heads, contexts)
    return sum(part.times * part.bytes_sent for part in parts)


# Time -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Seconds of one step: reading weights, reading K and V, computing, talking."""

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


def attention_time(
    model: ModelSizes, device: Device, batch: int, context: int, heads: int = 1, contexts: int = 1
) -> Times:
    """Of attention alone, in all layers, on one of the devices."""
    require_sizes(model, heads, contexts, batch, context)
    tokens = batch * context / contexts
    flops = 4 * tokens * model.num_layers * model.num_heads // heads * model.head_size
    kv = tokens * kv_bytes_per_token(model, heads) / device.bandwidth
    return Times(weights=0, kv=kv, computing=flops / device.flops, talking=0)


def decode_time(
    model: ModelSizes,
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
    attention = attention_time(model, device, batch, context, heads, contexts)
    flops = 2 * batch * matrix_numbers(model, heads)
    return Times(
        weights=weight_bytes(model, heads, embedding_rows=batch) / device.bandwidth,
        kv=attention.kv,
        computing=attention.computing + flops / device.flops,
        talking=sum(
            part.times * part.seconds(link) for part in collectives(model, batch, heads, contexts)
        ),
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
    """How many sequences of `context` tokens fit beside the weights, over heads x contexts devices.

    shared_tokens  so many of the first tokens are the same in all sequences; their full blocks
                   are held once. At least the newest token is a sequence's own
    contexts       block i of every sequence is on device i % contexts
    """
    require_sizes(model, heads, contexts, context=context)
    require(block_size >= 1, "block_size", block_size, "at least 1")
    require(0 <= shared_tokens < context, "shared_tokens", shared_tokens, f"0 to {context - 1}")
    free = usable * device.memory - weight_bytes(model, heads)
    pool = max(0, free // (block_size * kv_bytes_per_token(model, heads)))  # blocks of a device
    num_shared, num_blocks = shared_tokens // block_size, -(-context // block_size)
    room = []
    for rank in range(contexts):
        shared = len(range(rank, num_shared, contexts))
        own = len(range(rank, num_blocks, contexts)) - shared
        if own:  # the device with a sequence's last block has some, and no other has more blocks
            room.append(int(max(0, pool - shared) // own))
    return min(room)


def splits(model: ModelSizes, num_devices: int) -> list[tuple[int, int]]:
    """Every (heads, contexts) that takes all the devices."""
    require(num_devices >= 1, "num_devices", num_devices, "at least 1")
    return [(n, num_devices // n) for n in head_splits(model) if num_devices % n == 0]


def best_split(
    model: ModelSizes, device: Device, link: Link, batch: int, context: int, num_devices: int
) -> tuple[int, int] | None:
    """The (heads, contexts) with the fastest step; None if weights, K and V fit into no split."""
    require_sizes(model, batch=batch, context=context)

    def fits(split: tuple[int, int]) -> bool:
        heads, contexts = split
        return num_users(model, device, context, heads=heads, contexts=contexts) >= batch

    def seconds(split: tuple[int, int]) -> float:
        return decode_time(model, device, link, batch, context, *split).total

    return min(filter(fits, splits(model, num_devices)), key=seconds, default=None)
