"""A decoder like Llama and Qwen2 that leaves attention, and so K and V, to the caller."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import silu

from pa_tutorial.engine.rope import DEFAULT_ROPE, Rope, rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a model.

    mlp_size    width of the MLP's hidden layer
    max_len     the most positions that the model supports
    qkv_bias    whether q, k and v have a bias, as in Qwen2
    is_tied     whether the embedding of a token also computes its score
    eos_tokens  token ids that end a text
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    mlp_size: int
    vocab_size: int
    max_len: int
    norm_eps: float = 1e-6
    rope: Rope = DEFAULT_ROPE
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    is_tied: bool = False
    eos_tokens: tuple[int, ...] = ()

    @property
    def scale(self) -> float:
        return self.head_size**-0.5

    def alibi_slopes(self) -> None:
        """No bias: q and k already contain their positions."""


class SelfAttention(nn.Module):
    """The projections around attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        q_size = config.num_heads * config.head_size
        kv_size = config.num_kv_heads * config.head_size
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=config.out_bias)

    def qkv(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [num_tokens, hidden_size] -> q, k, v, each [num_tokens, its heads, head_size]."""
        heads = (-1, self.head_size)
        q = self.q_proj(hidden).unflatten(-1, heads)
        k = self.k_proj(hidden).unflatten(-1, heads)
        v = self.v_proj(hidden).unflatten(-1, heads)
        # The K that we cache already contains its position.
        return rotate(q, cos, sin), rotate(k, cos, sin), v


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        sizes = (config.hidden_size, config.mlp_size)
        self.gate_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.up_proj = nn.Linear(*sizes, bias=config.mlp_bias)
        self.down_proj = nn.Linear(*reversed(sizes), bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Norm, attention, norm, MLP, with a residual around each half."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)


class Llama(nn.Module):
    """Token ids in, scores for the next token out.

    The weights have the names of Hugging Face's checkpoints, without the leading "model.".
    Source: transformers, modeling_llama.py and modeling_qwen2.py.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.is_tied:
            self.lm_head.weight = self.embed_tokens.weight

    def run(
        self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """Run the model around attention. Only `attend` knows where K and V are stored.

        tokens, positions  [num_tokens] int64, of one sequence or of many
        attend             attend(layer, q, k, v) -> out, the shape of q; k and v of the new tokens
        rows               [num_rows] int64: only the scores after these tokens are computed
        returns            [num_tokens, vocab_size], or [num_rows, vocab_size]
        """
        hidden = self.embed_tokens(tokens)
        cos, sin = self.config.rope.cos_and_sin(positions, self.config.head_size)
        cos, sin = cos.to(hidden.dtype), sin.to(hidden.dtype)
        for index, layer in enumerate(self.layers):
            q, k, v = layer.self_attn.qkv(layer.input_layernorm(hidden), cos, sin)
            out = attend(index, q, k, v)
            hidden = hidden + layer.self_attn.o_proj(out.flatten(-2))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        hidden = hidden if rows is None else hidden[rows]
        return self.lm_head(self.norm(hidden))
