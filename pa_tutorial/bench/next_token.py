"""The next token of TinyLM: recomputing everything, against the KV cache."""

import torch
from torch import Tensor

from pa_tutorial.attention.tiny_lm import TinyLM, load
from pa_tutorial.bench.timing import interleaved


class DecodeStep:
    """The next token over a filled cache, again and again at the same length."""

    def __init__(self, model: TinyLM, tokens: Tensor) -> None:
        self.model, self.tokens = model, tokens
        self.caches = model.new_caches(len(tokens))
        model(tokens[:-1], self.caches)

    def __call__(self) -> Tensor:
        for cache in self.caches:
            cache.seq_len = len(self.tokens) - 1
        return self.model(self.tokens[-1:], self.caches)


@torch.inference_mode()
def next_token(lengths: tuple[int, ...], rounds: int) -> list[dict[str, object]]:
    """Time of the next token at each length: recomputed, cached, and how they compare."""
    model = load()
    rows = []
    for length in lengths:
        tokens = torch.arange(length) % model.config.vocab_size
        times = interleaved(
            {
                "full_recompute": lambda tokens=tokens: model(tokens),
                "kv_cache": DecodeStep(model, tokens),
            },
            rounds,
        )
        ratio = times["full_recompute"]["median_ms"] / times["kv_cache"]["median_ms"]
        rows.append({"seq_len": length, **times, "ratio": round(ratio, 2)})
        print(
            f"  {length:4} tokens: {times['full_recompute']['median_ms']:7.2f} ms recomputed, "
            f"{times['kv_cache']['median_ms']:6.2f} ms cached, {ratio:5.1f} times",
            flush=True,
        )
    return rows
