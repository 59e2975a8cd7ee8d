"""What a layer keeps of a token, and what it computes with it in a decode step."""

from dataclasses import dataclass

from pa_tutorial.arguments import require, require_heads

FLOAT16 = 2  # bytes


@dataclass(frozen=True)
class CachedHeads:
    """K and V of each KV head: multi-head attention (MHA) if every query head has its own,
    grouped-query attention (GQA) if several share one."""

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int

    def __post_init__(self) -> None:
        require_heads(self.num_heads, self.num_kv_heads)

    @property
    def kind(self) -> str:
        return "MHA" if self.num_heads == self.num_kv_heads else "GQA"

    @property
    def numbers(self) -> int:
        """Of one token in one layer."""
        return self.num_kv_heads * (self.key_size + self.value_size)

    @property
    def operations(self) -> int:
        """Of one query with one token: a multiply and an add for each number that a head reads."""
        return 2 * self.num_heads * (self.key_size + self.value_size)


@dataclass(frozen=True)
class CachedLatent:
    """One row for all heads: a latent, and a piece of key that carries the position (MLA)."""

    name: str
    num_layers: int
    num_heads: int
    latent_size: int
    rope_size: int
    kind = "MLA"

    @property
    def numbers(self) -> int:
        return self.latent_size + self.rope_size

    @property
    def operations(self) -> int:
        """Absorbed: the whole row is a key, and the latent is the value."""
        return 2 * self.num_heads * (self.numbers + self.latent_size)


CachedToken = CachedHeads | CachedLatent

# The files config.json of the checkpoints on Hugging Face; and DeepSeek-AI, "DeepSeek-V3 Technical
# Report" (arXiv:2412.19437, December 2024), section 4.2.
LLAMA_2_7B = CachedHeads("Llama 2 7B", 32, 32, 32, 128, 128)
LLAMA_3_1_8B = CachedHeads("Llama 3.1 8B", 32, 32, 8, 128, 128)
LLAMA_3_1_70B = CachedHeads("Llama 3.1 70B", 80, 64, 8, 128, 128)
DEEPSEEK_V3 = CachedLatent("DeepSeek-V3", 61, 128, 512, 64)
# The same model, if K and V of every head were kept: keys of 128 + 64 numbers, values of 128.
DEEPSEEK_V3_EXPANDED = CachedHeads("DeepSeek-V3, expanded", 61, 128, 128, 192, 128)
MODELS: tuple[CachedToken, ...] = (
    LLAMA_2_7B,
    LLAMA_3_1_8B,
    LLAMA_3_1_70B,
    DEEPSEEK_V3_EXPANDED,
    DEEPSEEK_V3,
)


def bytes_per_layer(model: CachedToken, bytes_per_number: int = FLOAT16) -> int:
    """Of one token in one layer."""
    return model.numbers * bytes_per_number


def tokens_in(memory: float, model: CachedToken, bytes_per_number: int = FLOAT16) -> int:
    """How many tokens fit into so many bytes, in all layers. Raises ValueError for a memory < 0."""
    require(memory >= 0, "memory", memory, "at least 0 bytes")
    return int(memory // (model.num_layers * bytes_per_layer(model, bytes_per_number)))


def intensity(model: CachedToken, bytes_per_number: int = FLOAT16) -> float:
    """Operations per byte of a decode step, if every byte is read once for all query heads."""
    return model.operations / bytes_per_layer(model, bytes_per_number)
