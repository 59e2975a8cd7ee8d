"""A small serving engine: requests share one pool of blocks, managed by a scheduler."""

from pa_tutorial.engine.checkpoint import CheckpointError, load_checkpoint
from pa_tutorial.engine.engine import Engine
from pa_tutorial.engine.llm import LLM
from pa_tutorial.engine.request import Request, SamplingParams

__all__ = [
    "LLM",
    "CheckpointError",
    "Engine",
    "Request",
    "SamplingParams",
    "load_checkpoint",
]
