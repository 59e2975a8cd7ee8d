"""An error for the reader whose function raised it: what it means, where, what to ask oneself."""

import re
from collections.abc import Callable, Sequence

from pa_tutorial.checks.running import describe
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.kernels.sources import source_of

# What is in an error -> what to ask oneself.
ADVICE = {
    r" and no end: ": "Which variable of its condition changes?",
    r"have no such name$": "They have the constants and functions of the notebooks, but no other "
    "names of yours.",
    r"pages\.py has no such name$": "It has the names of notebooks 01 to 06, and your functions. "
    "What else it needs, import or define within the function.",
    r"^only a number can be stored| is not a number$": "Does the function that made it return one "
    "number?",
    r"^only a number can be stored(?s:.*)\bload": "A vec is a tuple: `store` and `widen` write it.",
    r"\[:\]\[:\] has no elements": "It was cut twice: the caller has already passed its part.",
    r"^no statement of \w+ is at": "Put the comment back where what it names is complete.",
    r"does not know raise ": "Nothing on a GPU could catch it: the plan's steps belong here.",
    r"does not know a (list|dict|set|gen)": "A kernel has none: a running sum is a number, and "
    "cuda.local.array has room for several.",
    r"does not know an f-string": "`print(a, b)` prints numbers.",
    r"The size of tensor a|must match the size|Expected size for first|mat1 and mat2|"
    r"are not broadcastable": "Which dimensions should line up? Torch compares from the last one "
    "back; indexing with None adds one of size 1.",
    r"expanded size of the tensor|number of sizes provided": "Has the place that is assigned to "
    "as many tokens as what is assigned?",
    r"zero-dimensional tensor": "It is one number; `x[None]` makes it a row of one.",
    r"to have the same dtype|expected scalar type": "Is one of them float32, and the other not? "
    "`.float()` converts.",
    r"has no value here|has no variable '": "The check looks at it at a mark: keep its name.",
}
# What a reader can't use: our names of errors, places in our files (the line is quoted below).
NOT_FOR_READERS = (
    r"^it raised (SimtError|Unsupported|RuntimeError|KernelFileError): ",
    r"^it raised ValueError: (watch|names): ",
    r"^it raised KeyError: '(?=.* has no value)",
    r"(?<=has no value here); these have: .*",
    r"(?<!:) \((?:[^()]|\([^()]*\))*, line \d+\)(?=:)",
    r"\w+\.<locals>\.",
    r"\n.* of launch_.*",
    r" \(max_turns\)",
    r" Either the index is wrong, or the launch .*",  # the launch is ours
)
CUT = r"\[[\d:, ]*\.\.\.[^\]]*\]"


def in_plain_words(error: BaseException) -> str:
    """An error for a reader, with a question that may help."""
    words = describe(error)
    for pattern in NOT_FOR_READERS:
        words = re.sub(pattern, "", words)
    words = re.sub(r"\n  [^\n]+, line (\d+), in (\w+):\n +", r"\n  line \1 of \2:  ", words)
    # out[..., ...] is what a caller has cut out of out.
    words = re.sub(rf"(\w+){CUT}\[([^\]]*)\]", r"element [\2] of a part of \1", words)
    words = re.sub(rf"(?:the array )?(\w+){CUT}", r"a part of \1", words)
    advice = [text for pattern, text in ADVICE.items() if re.search(pattern, words, re.M)]
    return "\n".join([words, *advice])


def in_its_own_lines(message: str, blank: Blank, function: Callable) -> str:
    """Lines of the reader's function counted from its first, as in its cell.

    Of another function only the name is told: it may be the answer to another blank.
    """
    text, name = source_of(function).text, blank.function
    lines = [line.strip() for line in text.splitlines()]

    def own(match: re.Match[str]) -> str:
        code = match[2].strip()
        return f"line {lines.index(code) + 1} of {name}: {code}" if code in lines else match[0]

    message = re.sub(rf"line (\d+) of {name}: +(.*)", own, message)
    message = re.sub(r"\n +line \d+ of _\w+: .*", "", message)  # of to_float and the like
    message = re.sub(rf"line \d+ of (?!{name}:)(\w+): +.*", r"in \1", message)
    message = "\n".join(dict.fromkeys(message.splitlines()))  # the lines of another function
    return re.sub(r"\bin (\w+)$", lambda found: place(found[1], blank, lines), message, flags=re.M)


def place(name: str, blank: Blank, lines: Sequence[str]) -> str:
    """Another function, and the line of the reader's function that calls it, if only one does."""
    if comes_later(name, blank):
        return f"in {name}, which you write later"
    calls = [n for n, line in enumerate(lines) if re.search(rf"^[^#]*\b{name}\(", line)]
    if len(calls) != 1:
        return f"in {name}"
    return f"in {name}, called in line {calls[0] + 1} of {blank.function}: {lines[calls[0]]}"


def comes_later(name: str, blank: Blank) -> bool:
    """Whether a function is first met as a blank behind this one."""
    met = [one.function for one in all_blanks().values()]
    return name in met and met.index(name) > [*all_blanks()].index(blank.name)


def loop_named(message: str, function: Callable) -> str:
    """Of a loop that doesn't end: a while of the reader's, not the `for` in it that was last."""
    lines = enumerate(source_of(function).text.splitlines(), start=1)
    whiles = [f"line {n}: {line.strip()}" for n, line in lines if line.strip().startswith("while ")]
    if "and no end: " not in message or not whiles:
        return message
    return re.sub("(?<=and no end: ).*", " or ".join(whiles), message, count=1)
