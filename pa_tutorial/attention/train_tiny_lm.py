"""Train TinyLM on a text that comes with every Python: its own documentation.

    python -m pa_tutorial.attention.train_tiny_lm

takes under two minutes on two cores and writes tiny_lm.pt next to this file.
The result depends on the Python version (its documentation) and on the machine (rounding),
so the weights are committed, and you need this script only to change them.
"""

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM, encode, save
from pa_tutorial.printing import print_anything

# The chapters on statements, because a small model learns a small text well.
TOPICS = (
    *("assert", "assignment", "break", "class", "continue", "del", "exceptions", "for", "global"),
    *("if", "lambda", "pass", "raise", "return", "while", "with", "yield"),
)


def training_text() -> Tensor:
    """The documentation of Python's statements, as bytes: [num_tokens] int64."""
    return encode("\n".join(topics[name] for name in TOPICS))


def make_schedules(model: nn.Module, layers: nn.Module, steps: int) -> list[OneCycleLR]:
    """Muon for the layers' matrices (here it needs a third of the steps), AdamW for the rest."""
    matrices = [weight for weight in layers.parameters() if weight.dim() == 2]
    other_weights = [weight for weight in model.parameters() if weight not in {*matrices}]
    optimizers = [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(other_weights, lr=6e-3, weight_decay=0.0),
    ]
    return [
        OneCycleLR(one, one.defaults["lr"], steps, pct_start=0.1, cycle_momentum=False)
        for one in optimizers
    ]


def windows(text: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Random pieces of a text: [batch, length]."""
    starts = torch.randint(0, len(text) - length, (batch, 1), generator=generator)
    return text[starts + torch.arange(length)]


def descend(model: nn.Module, loss: Tensor, schedules: list[OneCycleLR]) -> None:
    """One step of the optimizers."""
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for schedule in schedules:
        schedule.optimizer.step()
        schedule.step()


def say(step: int, steps: int, loss: Tensor) -> None:
    """The loss, now and then."""
    if step % 50 == 0 or step == steps - 1:
        print(f"step {step:4d} of {steps}   loss {loss.item():.2f} nats per byte", flush=True)


def train(config: TinyConfig, text: Tensor, steps: int, batch: int, length: int) -> TinyLM:
    """Fit a TinyLM to predict the next byte of `text`; prints the loss now and then."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = TinyLM(config)
    for embedding in (model.token_embedding, model.position_embedding):
        torch.nn.init.normal_(embedding.weight, std=0.05)
    schedules = make_schedules(model, model.layers, steps)
    batched = torch.vmap(model)  # forward takes one sequence; vmap gives it a batch dimension
    for step in range(steps):
        pieces = windows(text, batch, length + 1, generator)
        scores = batched(pieces[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten())
        descend(model, loss, schedules)
        say(step, steps, loss)
    return model


if __name__ == "__main__":
    print_anything()
    save(train(TinyConfig(), training_text(), steps=1400, batch=4, length=256))
