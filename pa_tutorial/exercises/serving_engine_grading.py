"""Other questions for the exercises of notebook 16; the answers are known by construction."""

import numpy as np


def other_request(
    rng: np.random.Generator, name: str, sizes: tuple, word: str
) -> tuple[tuple, str]:
    """For a case of can_schedule: the same relation between the blocks, and so the same answer."""
    block_size, blocks, watermark = (int(rng.integers(*ends)) for ends in ((4, 33), (2, 9), (1, 4)))
    full = blocks * block_size  # tokens
    later = int(rng.integers(1, full))  # tokens that are generated
    many = 4 * blocks + watermark
    questions = {
        "fits": (full - later, later, block_size, many, many, 0),
        "exactly": (full, 1, block_size, many, blocks, 0),
        "one_too_few": (full, 1, block_size, many, blocks - 1, 0),
        "tail": (full + 1, 1, block_size, many, blocks, 0),
        "tokens_and_blocks": (full, 1, block_size, blocks + 1, blocks + 1, 0),
        "too_long": (full + 1, 1, block_size, blocks, blocks, 0),
        "too_long_and_full": (full + 1, 1, block_size, blocks, 0, 0),
        "grows_too_long": (full - later, later + 2, block_size, blocks, blocks, 0),
        "last_token": (full - later, later + 1, block_size, blocks, blocks, 0),
        "watermark_later": (full, 1, block_size, many, blocks + watermark - 1, watermark),
        "watermark_now": (full, 1, block_size, many, blocks + watermark, watermark),
        "watermark_never": (
            full, 1, block_size, blocks + watermark - 1, blocks + watermark - 1, watermark,
        ),
    }  # fmt: skip
    return questions[name], word


def other_blocks(rng: np.random.Generator, name: str, arguments: tuple) -> tuple[None, tuple]:
    """For a case of make_batch: other block numbers, not 0, and other tokens."""
    sizes, tables, block_size, _ = arguments
    number = rng.permutation(np.arange(1, 40)).tolist()
    tables = tuple([number[block] for block in table] for table in tables)
    return None, (sizes, tables, block_size, int(rng.integers(101, 1000)))


def other_tokens(
    rng: np.random.Generator, name: str, arguments: tuple, reason: str
) -> tuple[tuple, str]:
    """For a case of finish_reason: every token has another name, and others come before them."""
    generated, max_tokens, stop_tokens, eos_tokens, ignore_eos = arguments
    names = (rng.choice(50_000, 10, replace=False) + 1).tolist()
    if name == "token_zero":
        names[0] = 0
    before = rng.integers(50_001, 60_000, int(rng.integers(1, 9))).tolist()
    if name in ("first_token", "one_is_enough"):
        before = []
    generated, stop_tokens, eos_tokens = (
        [names[token] for token in tokens] for tokens in (generated, stop_tokens, eos_tokens)
    )
    limits = max_tokens + len(before), tuple(stop_tokens), tuple(eos_tokens), ignore_eos
    return (before + generated, *limits), reason
