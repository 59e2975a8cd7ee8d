"""The cases of notebook 01: attention with the causal mask, the cache, the loop that writes."""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, checked, tensors_of
from pa_tutorial.exercises.grading import graded, require_shape, require_tensor
from pa_tutorial.exercises.random_inputs import seeded_torch

EXERCISES = ()

# Attention ----------------------------------------------------------------------------------------

NUM_HEADS, HEAD_SIZE = 2, 8
_MASK = "A query sees its own token and those before it."
ATTENTION_CASES = (
    # name, what it isolates, what its failure means, queries, tokens, deviation of q, has a bias
    ("six queries and six tokens", "a query for every token", _MASK, 6, 6, 1.0, False),
    ("three queries and eight tokens", "the queries are the last tokens'", _MASK, 3, 8, 1.0, False),
    ("one query and seven tokens", "the newest token alone", _MASK, 1, 7, 1.0, False),
    ("the first token", "a text of one token", _MASK, 1, 1, 1.0, False),
    ("scores of several hundred", "exp overflows", "torch.softmax can.", 4, 6, 1e3, False),
    ("a bias", "a bias that isn't 0", "It is added to the scores.", 3, 6, 1.0, True),
)
Inputs = tuple[Tensor, Tensor, Tensor, float, Tensor | float]  # arguments of attention


def inputs(num_queries: int, seq_len: int, deviation: float, has_bias: bool, draw: int) -> Inputs:
    random = seeded_torch(10 * seq_len + num_queries, draw)
    q, k, v = torch.randn(3, seq_len, NUM_HEADS, HEAD_SIZE, generator=random)
    bias = torch.randn(NUM_HEADS, num_queries, seq_len, generator=random) if has_bias else 0.0
    return deviation * q[-num_queries:], k, v, HEAD_SIZE**-0.5, bias


def attention_run(pages: SimpleNamespace, *numbers: float) -> Tensor:
    q, k, v, scale, bias = inputs(*numbers)
    weights = weights_by(pages, q, k, scale, bias)
    slip = partial(slip_in, weights, q, k, scale, bias)
    require_weights(weights, right_weights(q, k, scale, bias), slip)
    return attended(pages, q, k, v, scale, bias)


def attended(pages: SimpleNamespace, *arguments: Tensor | float) -> Tensor:
    """The output; AnswerError if it has another shape, or an input was changed."""
    q, k, v, _, bias = arguments
    return checked(
        lambda: require_shape(pages.attention(*arguments), list(q.shape)),
        tensors_of(q=q, k=k, v=v, bias=bias),
    )


def weights_by(pages: SimpleNamespace, q: Tensor, k: Tensor, *rest: float | Tensor) -> Tensor:
    """[num_heads, num_queries, seq_len]: if the values are one-hot, the weights come out."""
    one_hot = torch.eye(len(k), HEAD_SIZE)[:, None].expand(k.shape).contiguous()
    out = attended(pages, q, k, one_hot, *rest)
    return out[:, :, : len(k)].transpose(0, 1)


def slip_in(weights: Tensor, q: Tensor, k: Tensor, scale: float, bias: Tensor | float) -> str:
    """Which scores would give these weights; empty if it isn't known."""
    slips = {
        "as if scale were 1": (1.0, bias),
        "as without the bias": (scale, 0.0),
        "as if the bias were scaled, too": (scale, scale * bias),
    }
    for words, numbers in slips.items():
        if torch.allclose(weights, right_weights(q, k, *numbers), atol=1e-3):
            return f", {words}"
    return ""


def require_weights(weights: Tensor, right: Tensor, slip: Callable[[], str]) -> None:
    """Raises AnswerError for the first query that has wrong weights."""
    _, num_queries, seq_len = weights.shape
    for query, token in enumerate(range(seq_len - num_queries, seq_len)):
        row, wanted = weights[:, query], right[:, query]
        seen, visible = row.abs().amax(0) > 1e-6, wanted.amax(0) > 1e-6
        who = f"query {query} is token {token}'s"
        if row.isnan().any():
            last = weights[:, -1].sum(-1)  # no token is masked for it
            why = NO_NUMBER if last.isnan().any() or are_one(last) else NOT_OVER_TOKENS
            raise AnswerError(f"{who}, and its weights are NaN: {why}")
        if (later := seen[token + 1 :]).any():
            first = token + 1 + int(later.int().argmax())
            raise AnswerError(f"{who}, and sees token {first}, which comes after it")
        if (lost := visible & ~seen).any():
            raise AnswerError(f"{who}, and doesn't see token {int(lost.int().argmax())}")
        if not are_one(total := row.sum(-1)):
            raise AnswerError(f"{who}, and its weights add up to {total[0]:.3g}, not to 1")
        if (wrong := (row - wanted).abs() > 1e-3).any():
            head, key = wrong.nonzero()[0].tolist()
            place = f"head {head}: query {query}'s weight on token {key}"
            found = f"{row[head, key]:.3g}"
            raise AnswerError(f"{place} should be {wanted[head, key]:.3g}, is {found}{slip()}")


def are_one(sums: Tensor) -> bool:
    return bool((sums - 1).abs().amax() <= 1e-3)


NOT_OVER_TOKENS = "the softmax must run over the tokens, and here runs over the heads"
NO_NUMBER = "it sees no token, exp overflows, or 0 · −∞ was computed"


def right_weights(q: Tensor, k: Tensor, scale: float, bias: Tensor | float) -> Tensor:
    """In float64, number by number."""
    biases = torch.as_tensor(bias).expand(NUM_HEADS, len(q), len(k)).tolist()
    q, k, weights = q.double().tolist(), k.double().tolist(), torch.zeros(NUM_HEADS, len(q), len(k))
    for h in range(NUM_HEADS):
        for i in range(len(q)):
            scores = [
                scale * sum(a * b for a, b in zip(q[i][h], k[j][h], strict=True)) + biases[h][i][j]
                for j in range(len(k) - len(q) + i + 1)
            ]
            exps = [math.exp(score - max(scores)) for score in scores]
            for j, exp in enumerate(exps):
                weights[h, i, j] = exp / sum(exps)
    return weights


def sums_in_float64(*numbers: float) -> Tensor:
    q, k, v, scale, bias = inputs(*numbers)
    weights = right_weights(q, k, scale, bias)
    return sum(weights[:, :, j].T[..., None] * v[j] for j in range(len(v)))


def attention_drawn(pages: SimpleNamespace, *numbers: float) -> Tensor:
    """The weights of head 0, [queries, tokens]."""
    q, k, _, scale, bias = inputs(*numbers)
    return weights_by(pages, q, k, scale, bias)[0]


# The cache ----------------------------------------------------------------------------------------

MAX_LEN, SIZES = 8, (2, 4)
_PLACE = "A token's k and v go to the first place that is free."
APPEND_CASES = (
    # name, what it isolates, what its failure means, tokens of each call
    ("a prompt of four tokens", "the first call", _PLACE, (4,)),
    ("a prompt, then two tokens", "one token at a time", _PLACE, (4, 1, 1)),
    ("a prompt in three pieces", "several tokens at a time", _PLACE, (3, 2, 2)),
    ("a cache that becomes full", "up to the last place", _PLACE, (6, 2)),
)


def keys_and_values(counts: tuple[int, ...], draw: int) -> Tensor:
    return torch.randn(2, sum(counts), *SIZES, generator=seeded_torch(sum(counts), draw))


def append_run(pages: SimpleNamespace, counts: tuple[int, ...], draw: int) -> Tensor:
    tokens, end = keys_and_values(counts, draw), 0
    cache = pages.Cache(MAX_LEN, *SIZES)
    memory = cache.memory
    for count in counts:
        pages.append_kv(cache, *tokens[:, end : end + count].clone())
        end += count
        if cache.memory is not memory:
            raise AnswerError(
                "cache.memory is another tensor now; write into the one that is there"
            )
        if cache.seq_len != end:
            raise AnswerError(
                f"with {end} tokens, seq_len is {cache.seq_len!r}; it should be {end}"
            )
        require_places(memory, tokens[:, :end])
    return cache.tokens()


def require_places(memory: Tensor, right: Tensor) -> None:
    """Raises AnswerError for the first place that doesn't hold its own token's k and v."""
    num_tokens = right.shape[1]
    for place in range(num_tokens):
        for name, mine, tokens in zip("kv", memory, right, strict=True):
            where = f"with {num_tokens} tokens, place {place} of {name.upper()}"
            if mine[place].isnan().all():
                there = [p for p, held in enumerate(mine) if torch.equal(held, tokens[place])]
                found = f"is at place {there[0]}" if there else "isn't there"
                raise AnswerError(f"{where} is empty: the {name} of token {place} {found}")
            if not torch.equal(mine[place], tokens[place]):
                held = held_by(mine[place], right)
                raise AnswerError(f"{where} should hold the {name} of token {place}, holds {held}")
    if (~memory[:, num_tokens:].isnan()).any():
        raise AnswerError(f"there are {num_tokens} tokens, and a place behind them is written")


def held_by(vector: Tensor, right: Tensor) -> str:
    for name, tokens in zip("kv", right, strict=True):
        for token, one in enumerate(tokens):
            if torch.equal(vector, one):
                return f"the {name} of token {token}"
    return "something else"


def what_was_appended(counts: tuple[int, ...], draw: int) -> Tensor:
    return keys_and_values(counts, draw)


# The loop -----------------------------------------------------------------------------------------

VOCAB_SIZE = 16
_LOOP = "A step takes only what the model has not seen, and its last row says what comes next."
GENERATE_CASES = (
    # name, what it isolates, what its failure means, tokens of the prompt, tokens to write
    ("three new tokens after five", "a prompt, then one token at a time", _LOOP, 5, 3),
    ("one token after four", "the prompt alone says what comes next", _LOOP, 4, 1),
    ("six tokens after one", "a prompt of one token", _LOOP, 1, 6),
    ("no token", "nothing to write", _LOOP, 3, 0),
)


def next_token(text: list[int]) -> int:
    """The model: what it writes depends on all tokens so far."""
    return (3 * sum(text) + 5 * text[-1] + 7 * len(text)) % VOCAB_SIZE


class Step:
    """A step that remembers what it was given, as a model with a cache does."""

    def __init__(self, right: list[int], prompt_len: int, most_calls: int) -> None:
        self.right, self.prompt_len, self.most_calls = right, prompt_len, most_calls
        self.text: list[int] = []
        self.likeliest: list[int] = []  # of each row that was returned last
        self.num_calls = 0

    def __call__(self, tokens: Tensor) -> Tensor:
        if not torch.is_tensor(tokens) or tokens.dim() != 1 or not len(tokens):
            raise AnswerError(f"step was given {tokens!r:.60}; it takes a row of tokens")
        self.num_calls += 1
        if self.num_calls > self.most_calls:
            raise AnswerError(
                f"step was called {self.num_calls} times: once per new token is enough"
            )
        self.require_new(tokens.tolist())
        rows = []
        for token in tokens.tolist():
            self.text.append(token)
            rows.append(torch.arange(VOCAB_SIZE) == next_token(self.text))
        scores = torch.stack(rows).float()
        self.likeliest = scores.argmax(dim=1).tolist()
        return scores

    def require_new(self, tokens: list[int]) -> None:
        seen, call = len(self.text), f"call {self.num_calls} of step was given"
        if self.right[seen : seen + len(tokens)] == tokens:
            return
        if seen < self.prompt_len:
            rest = self.right[seen : self.prompt_len]
            raise AnswerError(f"{call} {tokens}; of the prompt, it hasn't seen {rest} yet")
        if tokens[:seen] == self.text[: len(tokens)]:
            raise AnswerError(
                f"{call} {len(tokens)} tokens from the beginning of the text; it has seen the "
                f"first {seen}, and their k and v are in the cache"
            )
        last, rows = len(self.likeliest) - 1, ""
        if tokens[0] in self.likeliest[:last]:
            row = self.likeliest.index(tokens[0])
            rows = f": {tokens[0]} is row {row}'s likeliest, but row {last} follows the last token"
        raise AnswerError(f"{call} {tokens}; the text goes on with {self.right[seen]}{rows}")


def prompt_of(prompt_len: int, num_tokens: int, draw: int) -> list[int]:
    random = seeded_torch(prompt_len, draw)
    return torch.randint(VOCAB_SIZE, (prompt_len,), generator=random).tolist()


def text_of(prompt: list[int], num_tokens: int) -> list[int]:
    for _ in range(num_tokens):
        prompt = [*prompt, next_token(prompt)]
    return prompt


def run_with(pages: SimpleNamespace, *numbers: int) -> tuple[Tensor, Step]:
    prompt, num_tokens = prompt_of(*numbers), numbers[1]
    step = Step(text_of(prompt, num_tokens + 1), len(prompt), len(prompt) + num_tokens + 1)
    return pages.generate(step, torch.tensor(prompt), num_tokens), step


def generate_run(pages: SimpleNamespace, *numbers: int) -> Tensor:
    """The new tokens."""
    text, _ = run_with(pages, *numbers)
    right = torch.tensor(text_of(prompt_of(*numbers), numbers[1]))
    prompt_len, num_tokens, _ = numbers
    if torch.is_tensor(text) and text.dim() == 1 and len(text) != len(right):
        raise AnswerError(
            f"it returned {len(text)} tokens; {prompt_len} of the prompt and {num_tokens} new ones "
            f"are {len(right)}"
        )
    if not torch.equal(require_tensor(text, right)[:prompt_len], right[:prompt_len]):
        raise AnswerError(f"the text must begin with the prompt, {right[:prompt_len].tolist()}")
    return text[prompt_len:]


def token_by_token(*numbers: int) -> Tensor:
    return torch.tensor(text_of(prompt_of(*numbers), numbers[1])[numbers[0] :])


def tokens_computed(pages: SimpleNamespace, *numbers: int) -> dict[str, int]:
    return {"tokens computed": len(run_with(pages, *numbers)[1].text)}


CASES = {
    "attention": graded(
        ATTENTION_CASES,
        attention_run,
        sums_in_float64,
        ("query", "head", "element"),
        bound=1e-4,
        drawn=attention_drawn,
    ),
    "append_kv": graded(
        APPEND_CASES, append_run, what_was_appended, ("K|V", "place", "head", "element")
    ),
    "generate": graded(
        GENERATE_CASES, generate_run, token_by_token, ("new token",), costs=tokens_computed
    ),
}
