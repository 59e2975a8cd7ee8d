"""Rotary position embedding rotates q and k by an angle that grows with the position."""

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """The angles of a model.

    theta    the base: pair i of n rotates by position * theta^(-i/n)
    scaling  "default", with factor 1; "linear" divides positions by factor; "llama3" divides slow
             pairs by factor, keeps fast pairs, and interpolates between the two
    low_freq_factor, high_freq_factor, old_len  for "llama3": a pair is slow if it rotates less than
             low_freq_factor times in old_len tokens, fast if more than high_freq_factor times

    Source: transformers, modeling_rope_utils.py.
    """

    theta: float = 10_000.0
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    old_len: int = 8192

    def frequencies(self, head_size: int, device: torch.device) -> Tensor:
        """Angle per position of each pair of dimensions: [head_size / 2] float32."""
        exponent = torch.arange(0, head_size, 2, device=device).float() / head_size
        frequency = 1.0 / self.theta**exponent
        if self.scaling != "llama3":
            return frequency / self.factor
        turns = self.old_len * frequency / (2 * pi)
        between = self.high_freq_factor - self.low_freq_factor
        kept = ((turns - self.low_freq_factor) / between).clamp(0, 1)
        return kept * frequency + (1 - kept) * frequency / self.factor

    def cos_and_sin(self, positions: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
        """positions [num_tokens] -> cos, sin [num_tokens, 1, head_size] float32."""
        frequency = self.frequencies(head_size, positions.device)
        angle = positions[:, None].float() * frequency  # [num_tokens, head_size / 2]
        angle = torch.cat([angle, angle], dim=-1)[:, None]
        return angle.cos(), angle.sin()


DEFAULT_ROPE = Rope()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [num_tokens, heads, head_size]: dimension i and i + head_size / 2 are a pair.

    (a, b) -> (a cos - b sin, b cos + a sin)
    """
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin
