"""LLM: prompts in, completions out."""

import os
from collections import deque
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from pa_tutorial.arguments import has_order, require_bool, require_type, whole_numbers
from pa_tutorial.attention import tiny_lm
from pa_tutorial.engine.checkpoint import TINY_LLAMA, load_checkpoint
from pa_tutorial.engine.engine import Engine
from pa_tutorial.engine.request import DEFAULT_PARAMS, Request, SamplingParams
from pa_tutorial.engine.runner import Model
from pa_tutorial.engine.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.pages import Pages

Prompt = str | Several[int]
ModelOrPlace = Model | str | os.PathLike
COME_WITH_US = {"tiny": tiny_lm.load, "tiny_llama": partial(load_checkpoint, TINY_LLAMA)}


@dataclass(frozen=True)
class Completion:
    """The answers to one prompt.

    token_ids       [num_samples] lists of generated tokens, including a stop token
    texts           the same as text; None without a tokenizer
    finish_reasons  of each sample: "stop", "length" or "error"
    error           why the request was refused or ended; None if it wasn't
    """

    prompt: Prompt
    token_ids: list[list[int]]
    texts: list[str] | None
    finish_reasons: list[str]
    error: Exception | None = None

    @property
    def text(self) -> str:
        """The text of the first sample. Raises the request's error if there is no sample."""
        if self.error is not None:
            raise self.error
        if self.texts is None:
            raise ValueError("text is None: the model has no tokenizer; token_ids has the tokens")
        return self.texts[0]


class LLM:
    """A model that answers many prompts at once, through the engine.

        LLM().generate(["The for statement"])

    model      "tiny" (TinyLM) or "tiny_llama", which come with this package, a folder with a
               Hugging Face checkpoint (Llama or Qwen2), or a model itself
    tokenizer  needed for prompts that are text; found automatically for a name and for a folder
    num_blocks, block_size, prefix_caching, watermark
               of its BlockPages
    pages      another memory manager in place of those
    options    options of the Engine: backend, kv_cache_dtype, token_budget, …

    Raises ValueError or OSError, saying what is wrong, for a folder that can't be loaded.
    """

    def __init__(
        self,
        model: ModelOrPlace = "tiny",
        tokenizer: Tokenizer | None = None,
        num_blocks: int = 512,
        block_size: int = 16,
        prefix_caching: bool = True,
        watermark: int = 0,
        pages: Pages | None = None,
        **options: object,
    ) -> None:
        model, self.tokenizer = load_model(model, tokenizer)
        if pages is None:
            pages = BlockPages(num_blocks, block_size, prefix_caching, watermark)
        self.engine = Engine(model, pages, **options)
        self.statistics = self.engine.statistics  # of all steps so far, including earlier calls

    def generate(
        self,
        prompts: Several[Prompt],
        params: SamplingParams | Several[SamplingParams] = DEFAULT_PARAMS,
        arrivals: Several[int] | None = None,
        progress: bool = True,
    ) -> list[Completion]:
        """Answer every prompt.

        prompts   each is text or token ids
        params    one for all prompts, or one per prompt
        arrivals  the step before which each prompt arrives, counted from this call (online);
                  without it, all are there at the start (offline)
        progress  whether to show a progress bar
        returns   one completion per prompt, in order. A prompt that is refused or fails has an
                  error in its completion; the others continue.

        Raises TypeError or ValueError if prompts isn't a list, or if the number of params or
        arrivals is wrong.
        """
        require_bool("progress", progress)
        prompts = as_list("prompts", prompts, "a list of prompts, such as [prompt]")
        if isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        each = as_list("params", params, "SamplingParams, or a list of them")
        arrivals = [0] * len(prompts) if arrivals is None else arrivals
        arrivals = whole_numbers("arrivals", arrivals)
        for name, values in (("params", each), ("arrivals", arrivals)):
            if len(values) != len(prompts):
                raise ValueError(f"{name} has {len(values)}; it must be one for each prompt")
        requests: dict[int, Request] = {}
        coming = deque(sorted(range(len(prompts)), key=lambda index: arrivals[index]))
        step = 0
        # miniters=0 redraws the bar ten times per second even if no request has ended.
        options = {"unit": "request", "miniters": 0, "disable": not progress}
        with tqdm(total=len(prompts), **options) as bar:
            try:
                while coming or not self.engine.is_idle:
                    while coming and arrivals[coming[0]] <= step:
                        index = coming.popleft()
                        requests[index] = self._add(prompts[index], each[index])
                    self.engine.step()
                    step += 1
                    samples = [s for r in requests.values() for s in r.samples]
                    bar.set_postfix(tokens=sum(len(s.generated) for s in samples), refresh=False)
                    bar.update(sum(r.is_finished for r in requests.values()) - bar.n)
            finally:  # after an interrupt, the pool belongs to the next call
                for request in requests.values():
                    self.engine.cancel(request)
        return [self._completion(prompt, requests[i]) for i, prompt in enumerate(prompts)]

    def _add(self, prompt: Prompt, params: SamplingParams) -> Request:
        try:
            return self.engine.add(self._token_ids(prompt), params)
        except (TypeError, ValueError) as error:
            return Request(-1, [], params, error=error)  # without samples, so it is finished

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return as_list("prompt", prompt, "text or token ids")
        if self.tokenizer is None:
            raise ValueError("prompt is text; this model has no tokenizer: it must be token ids")
        return list(self.tokenizer.encode(prompt))

    def _completion(self, prompt: Prompt, request: Request) -> Completion:
        token_ids = [sample.generated for sample in request.samples]
        texts = None if self.tokenizer is None else list(map(self.tokenizer.decode, token_ids))
        finish_reasons = [sample.finish_reason for sample in request.samples]
        return Completion(prompt, token_ids, texts, finish_reasons, request.error)


def load_model(
    model: ModelOrPlace, tokenizer: Tokenizer | None = None
) -> tuple[Model, Tokenizer | None]:
    """Load what LLM takes as a model, with the model's own tokenizer if none is given."""
    is_tokenizer = tokenizer is None or hasattr(tokenizer, "decode")
    require_type(is_tokenizer, "tokenizer", tokenizer, "a Tokenizer or None")
    if isinstance(model, str) and model in COME_WITH_US:
        return COME_WITH_US[model](), tokenizer or ByteTokenizer()
    if isinstance(model, str | os.PathLike):
        folder = Path(model)
        return load_checkpoint(folder), tokenizer or load_tokenizer(folder)
    require_type(hasattr(model, "config"), "model", model, "a Model, such as TinyLM")
    return model, tokenizer


def as_list(name: str, values: object, allowed: str) -> list:
    """Raise TypeError for a text and for anything that can't be listed in an order of its own."""
    if not has_order(values) or getattr(values, "ndim", 1) == 0:
        raise TypeError(f"{name} is {values!r}; it must be {allowed}")
    return list(values)
