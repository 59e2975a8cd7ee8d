"""From a failed comparison to a sentence: where the error is largest, what its pattern means."""

import numpy as np

from pa_tutorial.checks.comparing import QUANTITIES, Comparison

EVERY_DIGIT = 17  # tell any two float64 apart


def diagnose(failed: list[Comparison], axes: tuple[str, ...], problem: object = None) -> str:
    """Several lines for a reader: the first wrong quantity, the worst place, the pattern.

    failed   the comparisons that exceed their bound, in order of computation
    axes     what each dimension of `out` counts; the last one is within a row
    problem  a SequenceProblem or DecodeProblem, for patterns that need its numbers
    """
    first = failed[0]
    lines = []
    if first.quantity != "out":
        lines.append(f"first wrong: {first.quantity}, {QUANTITIES[first.quantity]}")
    out = next((c for c in failed if c.quantity == "out"), None)
    lines.append(_worst_place(out, axes) if out else "out itself is within its bound")
    if out and (pattern := _pattern(out, axes, problem)):
        lines.append(f"pattern: {pattern}")
    return "\n".join(lines)


def _worst_place(out: Comparison, axes: tuple[str, ...]) -> str:
    """The element with the largest error or, where all must be equal, the first that differs."""
    exact = out.bound == 0
    flat = np.argmax(out.errors > 0) if exact else np.argmax(out.errors)
    row = np.unravel_index(int(flat), out.errors.shape)
    actual, expected = out.actual[row], out.expected[row]
    differs = actual != expected  # -inf isn't, where both have it
    difference = np.abs(np.subtract(actual, expected, where=differs, out=np.zeros(differs.shape)))
    size = np.where(np.isnan(difference), np.inf, difference)
    element = int(np.argmax(differs if exact else size))
    place = ", ".join(
        name_place(axis, int(index)) for axis, index in zip(axes, (*row, element), strict=False)
    )
    found, wanted = told_apart(actual[element], expected[element], 7 if exact else 3)
    where = f"{'first difference from' if exact else 'worst against'} {out.reference}"
    return f"{where}: {place} is {found} and should be {wanted}"


def told_apart(actual: float, expected: float, digits: int) -> tuple[str, str]:
    """Two different numbers as text, with enough digits to tell them apart."""
    while f"{actual:.{digits}g}" == f"{expected:.{digits}g}" and digits < EVERY_DIGIT:
        digits += 1
    return f"{actual:.{digits}g}", f"{expected:.{digits}g}"


def name_place(axis: str, index: int) -> str:
    """ "head", 3 -> "head 3"; "keys|values", 1 -> "values"."""
    return axis.split("|")[index] if "|" in axis else f"{axis} {index}"


def _pattern(out: Comparison, axes: tuple[str, ...], problem: object) -> str | None:
    """The first description that matches the wrong rows."""
    wrong = out.errors > out.bound
    if np.isnan(out.actual).any():
        why = "0 was divided by 0, infinity taken from infinity, or what isn't there was read"
        if problem is not None:
            why = "a slot without a token was read, or exp overflowed, or a whole row was masked"
        return f"the output holds NaN: {why}"
    if not np.any(out.actual):
        return "the output is all zero: nothing was written, or only zeros were"
    if axes[0] == "layer" and wrong.shape[0] > 1 and not wrong[0].any():
        return "layer 0 is right: what it passed on was used at the wrong position or time"
    if axes[:2] == ("layer", "position"):
        sentence = _position_pattern(wrong[0].any(axis=-1), problem.steps[0])
        if sentence:
            return sentence
    if problem is not None and problem.num_heads != problem.num_kv_heads:
        heads = np.moveaxis(wrong, axes.index("head"), -1).reshape(-1, wrong.shape[-1])
        bad = np.flatnonzero(heads.any(axis=0))
        if len(bad) < wrong.shape[-1]:
            return f"only heads {bad.tolist()} are wrong: look at which KV head each one reads"
    if out.bound > 0 and wrong.size > 1 and wrong.all():
        rows = " and ".join("number" if "|" in axis else axis for axis in axes[: wrong.ndim])
        return f"in this case every {rows} is wrong, not just that one"
    return None


def _position_pattern(wrong: np.ndarray, prompt_len: int) -> str | None:
    """wrong [seq_len] bool, for layer 0, where no earlier layer can be the cause."""
    prompt, rest = wrong[:prompt_len], wrong[prompt_len:]
    if len(wrong) > 1 and wrong[:-1].all() and not wrong[-1]:
        return "only the last position is right: earlier ones see tokens that come after them"
    if rest.any() and not prompt.any():
        return "the prompt is right and decode is wrong: cache, positions, or weights of decode"
    if len(rest) and prompt.any() and not rest.any():
        return "decode is right and the prompt is wrong: look at the mask"
    return None
