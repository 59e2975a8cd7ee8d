"""Sizes of devices, links and models, by name; any others can be made of the same classes."""

from dataclasses import dataclass

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


# NVIDIA, data sheets "A100 80GB", "H100 Tensor Core GPU" and "H200 Tensor Core GPU", columns SXM;
# operations without sparsity. The sheets write GB of memory; what a driver reports are GiB.
A100 = Device("A100", 2.039e12, 80 * GIB, 312e12)
H100 = Device("H100", 3.35e12, 80 * GIB, 989.5e12)
H200 = Device("H200", 4.8e12, 141 * GIB, 989.5e12)

# Bandwidths: half of what the sheets give for both directions; InfiniBand with one port a device.
# Latencies are assumptions: those with which NCCL itself predicts a ring of small messages (hwLat
# in src/graph/tuning.cc, protocol LL). For its other protocols it has 1.5 to 6 times as much.
NVLINK_3 = Link("NVLink 3", 300e9, 0.6e-6)
NVLINK_4 = Link("NVLink 4", 450e9, 0.6e-6)
PCIE_4 = Link("PCIe 4 x16", 32e9, 1.0e-6)
INFINIBAND_NDR = Link("InfiniBand NDR", 50e9, 2.7e-6)

LLAMA_3_1_8B = ModelSizes("Llama 3.1 8B", 32, 32, 8, 128, 4096, 14336, 128256)
LLAMA_3_1_70B = ModelSizes("Llama 3.1 70B", 80, 64, 8, 128, 8192, 28672, 128256)
LLAMA_2_7B = ModelSizes("Llama 2 7B", 32, 32, 32, 128, 4096, 11008, 32000)  # multi-head attention
LLAMA_2_70B = ModelSizes("Llama 2 70B", 80, 64, 8, 128, 8192, 28672, 32000)
