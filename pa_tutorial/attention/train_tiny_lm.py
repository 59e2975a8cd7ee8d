"""Train TinyLM on a text that comes with every Python: its own documentation.

    python -m pa_tutorial.attention.train_tiny_lm

takes under two minutes on two cores and writes tiny_lm.pt next to this file.
The result depends on the Python version (its documentation) and on the machine (rounding),
so the weights are committed, and you need this script only to change them.
"""

import argparse
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pa_tutorial.attention.tiny_lm import WEIGHTS, TinyConfig, TinyLM, encode, save

# The chapters on statements, because a small model learns a small text well.
TOPICS = (
    *("assert", "assignment", "break", "class", "continue", "del", "exceptions", "for", "global"),
    *("if", "lambda", "pass", "raise", "return", "while", "with", "yield"),
)


def training_text() -> Tensor:
    """The documentation of Python's statements, as bytes: [num_tokens] int64."""
    return encode("\n".join(topics[name] for name in TOPICS))


def sample_windows(text: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Random pieces of the text: [batch, length + 1]."""
    starts = torch.randint(0, len(text) - length - 1, (batch, 1), generator=generator)
    return text[starts + torch.arange(length + 1)]


def make_optimizers(model: TinyLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices (here it needs a third of the steps), AdamW for the rest."""
    matrices = [weight for weight in model.layers.parameters() if weight.dim() == 2]
    ids = {id(weight) for weight in matrices}
    other_weights = [weight for weight in model.parameters() if id(weight) not in ids]
    return [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(other_weights, lr=6e-3, weight_decay=0.0),
    ]


def train(
    config: TinyConfig, text: Tensor, steps: int, batch: int = 4, length: int = 256, seed: int = 0
) -> TinyLM:
    """Fit a TinyLM to predict the next byte of `text`; prints the loss now and then."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = TinyLM(config)
    for embedding in (model.token_embedding, model.position_embedding):
        torch.nn.init.normal_(embedding.weight, std=0.05)
    optimizers = make_optimizers(model)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer, optimizer.defaults["lr"], steps, pct_start=0.1, cycle_momentum=False
        )
        for optimizer in optimizers
    ]
    batched = torch.vmap(model)  # forward takes one sequence; vmap gives it a batch dimension
    for step in range(steps):
        windows = sample_windows(text, batch, length, generator)
        scores = batched(windows[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d} of {steps}   loss {loss.item():.2f} nats per byte", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pa_tutorial.attention.train_tiny_lm", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="where to write the weights")
    arguments = parser.parse_args()
    start = time.perf_counter()
    model = train(TinyConfig(), training_text(), arguments.steps)
    save(model, arguments.out)
    print(
        f"{time.perf_counter() - start:.0f} s; wrote {arguments.out} "
        f"({arguments.out.stat().st_size / 1000:.0f} kB)"
    )


if __name__ == "__main__":
    main()
