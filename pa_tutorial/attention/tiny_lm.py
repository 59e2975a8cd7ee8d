"""TinyLM: a byte-level language model, small enough to read, with prefill and decode."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from pa_tutorial.arguments import (
    as_row,
    require,
    require_below,
    require_bool,
    require_heads,
    require_shape,
    require_tensor,
    require_type,
    whole_number,
)
from pa_tutorial.attention.cached import KVCache, cached_attention
from pa_tutorial.attention.full import causal_attention

WEIGHTS = Path(__file__).with_name("tiny_lm.pt")


@dataclass(frozen=True)
class TinyConfig:
    """The sizes of a TinyLM. The defaults match the trained weights."""

    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 32
    max_len: int = 256
    mlp_ratio: int = 4
    vocab_size: int = 256
    alibi: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "head_size", "max_len", "mlp_ratio", "vocab_size"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1))
        require_heads(self.num_heads, self.num_kv_heads)
        require_bool("alibi", self.alibi)

    @property
    def hidden_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def scale(self) -> float:
        return self.head_size**-0.5

    def alibi_slopes(self) -> Tensor | None:
        """[num_heads]: 2^-(8/num_heads), 2^-(16/num_heads), …, the ALiBi paper's rule for
        powers of two, used here for any number of heads; or None."""
        if not self.alibi:
            return None
        return 2.0 ** (-8.0 / self.num_heads * torch.arange(1, self.num_heads + 1))


class Layer(nn.Module):
    """RMSNorm, attention, RMSNorm, MLP, with a residual around each half.

    Prefill and decode use the same projections,
    which is why cached K and V equal recomputed ones.
    """

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        hidden_size, head_size = config.hidden_size, config.head_size
        self.attention_norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.to_q = nn.Linear(hidden_size, config.num_heads * head_size, bias=False)
        self.to_k = nn.Linear(hidden_size, config.num_kv_heads * head_size, bias=False)
        self.to_v = nn.Linear(hidden_size, config.num_kv_heads * head_size, bias=False)
        self.to_out = nn.Linear(config.num_heads * head_size, hidden_size, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.mlp_up = nn.Linear(hidden_size, config.mlp_ratio * hidden_size, bias=False)
        self.mlp_down = nn.Linear(config.mlp_ratio * hidden_size, hidden_size, bias=False)

    def qkv(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [num_tokens, hidden_size] -> q, k, v, each [num_tokens, its heads, head_size]."""
        normed = self.attention_norm(hidden)
        heads = (-1, self.config.head_size)
        q = self.to_q(normed).unflatten(-1, heads)
        k = self.to_k(normed).unflatten(-1, heads)
        v = self.to_v(normed).unflatten(-1, heads)
        return q, k, v

    def finish(self, hidden: Tensor, out: Tensor) -> Tensor:
        """What follows attention: output projection, residual, MLP, residual.

        hidden   [num_tokens, hidden_size]           the layer's input
        out      [num_tokens, num_heads, head_size]  what attention returned
        returns  [num_tokens, hidden_size]
        """
        hidden = hidden + self.to_out(out.flatten(-2))
        return hidden + self.mlp_down(torch.relu(self.mlp_up(self.mlp_norm(hidden))))


class TinyLM(nn.Module):
    """Takes bytes and returns scores for the next byte; the walk generates text with it."""

    def __init__(self, config: TinyConfig = TinyConfig()) -> None:
        super().__init__()
        require_type(isinstance(config, TinyConfig), "config", config, "a TinyConfig")
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = nn.Embedding(config.max_len, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=1e-5)
        self.to_vocab = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def new_caches(self, max_len: int | None = None) -> list[KVCache]:
        """One empty cache per layer, with room for `max_len` tokens each."""
        config, dtype = self.config, self.to_vocab.weight.dtype
        room = config.max_len if max_len is None else max_len
        return [KVCache(room, config.num_kv_heads, config.head_size, dtype) for _ in self.layers]

    def forward(
        self,
        tokens: Tensor,
        caches: list[KVCache] | None = None,
        attention: Callable[..., Tensor] | None = None,
        probe: dict[str, list] | None = None,
    ) -> Tensor:
        """Scores for the token after each of `tokens`.

        tokens     [num_tokens] int64: the whole sequence, or, with caches, only what is new
        caches     one per layer, holding the earlier tokens; the new K and V are appended
        attention  causal_attention without caches and cached_attention with them,
                   or any function of the same arguments
        probe      receives `k` and `out`, lists: the new keys of each layer, and what its
                   attention returned
        returns    [num_tokens, vocab_size]

        Raises ValueError if a token isn't a byte or the sequence outgrows max_len.
        """
        require_tensor("tokens", tokens)
        caches = [] if caches is None else caches
        right = [], [KVCache] * len(self.layers)
        fit = isinstance(caches, list) and [*map(type, caches)] in right
        require_type(fit, "caches", caches, "a list of KVCaches, one per layer")
        require_type(attention is None or callable(attention), "attention", attention, "a function")
        first = caches[0].seq_len if caches else 0
        positions = torch.arange(first, first + tokens.numel())
        self.require_tokens(tokens, positions)
        for cache in caches:
            cache.require_room(len(tokens), "len(tokens)")
        if attention is None:
            attention = cached_attention if caches else causal_attention
        slopes = self.config.alibi_slopes()

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if caches:
                caches[layer].append(k, v)
                k, v = caches[layer].keys, caches[layer].values
            return attention(q, k, v, self.config.scale, slopes)

        return self.run(tokens, positions, attend, probe)

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Callable[[int, Tensor, Tensor, Tensor], Tensor],
        probe: dict[str, list] | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """The model around attention. Only `attend` knows where K and V are stored.

        tokens, positions  [num_tokens] int64, of one sequence or of many
        attend             attend(layer, q, k, v) -> out, the shape of q; k and v of the new tokens
        probe              as in forward
        rows               [num_rows] int64: only the scores after these tokens are computed
        returns            [num_tokens, vocab_size], or [num_rows, vocab_size]

        Raises ValueError if a token isn't a byte or a position is outside 0 to max_len - 1.
        """
        self.require_tokens(tokens, positions)
        try:
            hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        except IndexError:  # checked only now, because under torch.vmap (in training) we can't
            require_below("tokens", tokens, self.config.vocab_size)
            raise
        for index, layer in enumerate(self.layers):
            q, k, v = layer.qkv(hidden)
            out = attend(index, q, k, v)
            hidden = layer.finish(hidden, out)
            if probe is not None:
                probe.setdefault("k", []).append(k)
                probe.setdefault("out", []).append(out)
        hidden = hidden if rows is None else hidden[rows]
        return self.to_vocab(self.final_norm(hidden))

    def require_tokens(self, tokens: Tensor, positions: Tensor) -> None:
        """Raise TypeError or ValueError unless both are [num_tokens], whole numbers, and the
        positions are in range."""
        for name, tensor in (("tokens", tokens), ("positions", positions)):
            require_tensor(name, tensor)
            is_index = tensor.dtype in (torch.int32, torch.int64)
            require(is_index, f"{name}.dtype", tensor.dtype, "torch.int64")
        is_row = tokens.dim() == 1 and len(tokens) > 0
        require_shape(is_row, "tokens", tokens, "it must be [num_tokens], at least one")
        must = f"it must be {list(tokens.shape)}, one for each token"
        require_shape(positions.shape == tokens.shape, "positions", positions, must)
        require_below("positions", positions, self.config.max_len)

    @torch.inference_mode()
    def generate(self, prompt: Tensor, num_tokens: int, use_cache: bool = True) -> Tensor:
        """Append the likeliest next token, `num_tokens` times (greedy generation).

        prompt   [prompt_len] int64
        returns  [num_tokens] int64, the generated tokens

        With the cache: one prefill, then one token per step.
        Without it: the whole sequence again at every step.
        """
        prompt = as_row("prompt", prompt)
        require(len(prompt) > 0, "prompt", "empty", "at least one token")
        require_bool("use_cache", use_cache)
        room = max(0, self.config.max_len + 1 - len(prompt))  # the last token is never fed back
        num_tokens = whole_number("num_tokens", num_tokens, 0, room)
        caches = self.new_caches(len(prompt) + num_tokens) if use_cache else None
        sequence, new = prompt, prompt
        for _ in range(num_tokens):
            scores = self(new if use_cache else sequence, caches)
            new = scores[-1].argmax(keepdim=True)
            sequence = torch.cat([sequence, new])
        return sequence[len(prompt) :]


def encode(text: str) -> Tensor:
    """Text to bytes: [num_tokens] int64. Raises TypeError for anything but a str."""
    require_type(isinstance(text, str), "text", text, "a str")
    return torch.tensor(list(text.encode()), dtype=torch.int64)


def decode(tokens: Tensor) -> str:
    """Bytes to text; a byte that isn't part of a character becomes a question mark."""
    tokens = as_row("tokens", tokens)
    require_below("tokens", tokens, 256)
    return bytes(tokens.tolist()).decode(errors="replace")


def save(model: TinyLM, path: Path = WEIGHTS) -> None:
    """Write the weights in float16, at half the size, together with the sizes of the model."""
    require_type(isinstance(model, TinyLM), "model", model, "a TinyLM")
    has_folder = isinstance(path, str | Path) and Path(path).parent.is_dir()
    require(has_folder and bool(Path(path).name), "path", path, "a file in a folder that exists")
    weights = {name: tensor.half() for name, tensor in model.state_dict().items()}
    torch.save({"config": asdict(model.config), "weights": weights}, path)


def load(path: Path = WEIGHTS) -> TinyLM:
    """The trained TinyLM, in float32. Raises ValueError for anything but a file from `save`."""
    try:
        saved = torch.load(path, weights_only=True)
        model = TinyLM(TinyConfig(**saved["config"]))
        model.load_state_dict(saved["weights"])
    except Exception as error:  # torch raises many kinds
        raise ValueError(f"path is {path}; it must be a file from `save`") from error
    return model.requires_grad_(False)
