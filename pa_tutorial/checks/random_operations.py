"""Random operations on a memory manager, and the shortest sequence of them that goes wrong.

    from pa_tutorial.checks.random_operations import shortest_failure

    print(shortest_failure(mine.Pages) or "Nothing went wrong.")

`python -m pa_tutorial.checks block_manager my_pages.py` plays the stories first, then this.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from string import ascii_uppercase, digits

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.pages_at_work import MakePages, PagesAtWork, play
from pa_tutorial.checks.running import one_thread
from pa_tutorial.checks.script import Operation

Drawn = tuple[str, str, object]  # append, fork or free; a sequence; how many tokens, or whose fork

NUM_BLOCKS = 7  # few, so that they run out
BLOCK_SIZES = (4, 3)
NAMES = "abc"
LETTERS = ascii_uppercase + digits  # in capitals: sequences have small letters
MOST_TOKENS = 9  # of one append
MOST_OPERATIONS = 15
NUM_PLAYS = 400


def letter(token: int) -> str:
    """Tokens are numbered as they come, so that no two are equal; a reader sees letters."""
    return LETTERS[token % len(LETTERS)]


def shortest_failure(
    make_pages: MakePages, name: str = "Pages", again: Callable[[], MakePages] | None = None
) -> str:
    """What goes wrong after as few operations as possible, with the state after each; "" if nothing
    does.

    make_pages  num_blocks and block_size -> an object of the protocol, as Pages does
    name        how the first line calls it
    again       defines make_pages anew: what goes right then went wrong because of other objects

    Raises ImportError without hypothesis.
    """
    try:
        import hypothesis  # only here: it takes half a second, and is an extra
        from hypothesis import strategies as st
    except ImportError as error:
        raise ImportError("random operations need hypothesis: pip install hypothesis") from error

    names = st.sampled_from(NAMES)
    append = st.tuples(st.just("append"), names, st.integers(1, MOST_TOKENS))
    fork = st.tuples(st.just("fork"), names, names)
    free = st.tuples(st.just("free"), names, st.none())
    drawn = st.lists(append | fork | free, max_size=MOST_OPERATIONS)
    settings = hypothesis.settings(
        max_examples=NUM_PLAYS,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        with one_thread():
            block_size, shortest = hypothesis.find(
                st.tuples(st.sampled_from(BLOCK_SIZES), drawn),
                lambda one: what_fails(make_pages, *one) is not None,
                settings=settings,
                random=Random(0),
            )
        told = what_fails(make_pages, block_size, shortest)
        if again and what_fails(again(), block_size, shortest) is None:
            told = None
    except hypothesis.errors.NoSuchExample:
        return ""
    except hypothesis.errors.Flaky:
        told = None
    if told is None:
        return (
            f"{name}: the same operations go wrong only sometimes. Does anything outlive an object "
            "of Pages, such as a list that all of them share?"
        )
    return f"{name}: wrong, in a pool of {NUM_BLOCKS} blocks of {block_size} tokens:\n{told}"


def what_fails(make_pages: MakePages, block_size: int, drawn: Sequence[Drawn]) -> str | None:
    """The operations up to the one that goes wrong; None if none does."""
    world = PagesAtWork(make_pages, NUM_BLOCKS, block_size, letter)
    try:
        play(world, operations(world, in_order(drawn)))
    except AnswerError as error:
        return str(error)
    return None


def in_order(drawn: Sequence[Drawn]) -> list[Drawn]:
    """The same, with sequences called a, b and c as they come."""
    names = [name for _, *two in drawn for name in two if isinstance(name, str)]
    called = dict(zip(dict.fromkeys(names), NAMES, strict=False))
    return [(act, called[name], called.get(what, what)) for act, name, what in drawn]


def operations(world: PagesAtWork, drawn: Sequence[Drawn]) -> Iterator[Operation]:
    """What was drawn, without what can't be done: forks and ends of sequences that there aren't."""
    num_tokens = 0
    for act, name, what in drawn:
        is_there = name in world.tokens
        if act == "append":
            tokens = range(num_tokens, num_tokens + what)
            num_tokens += what
            yield from appending(world, name, tokens)
        elif act == "fork" and is_there and what not in world.tokens:
            yield Operation("fork", (name, what), {}, f"fork {name} {what}")
        elif act == "free" and is_there:
            yield Operation("free", (name,), {}, f"free {name}")


def appending(world: PagesAtWork, name: str, tokens: Sequence[int]) -> Iterator[Operation]:
    """May it start, if it is new; then the append, which must be refused if there is no room."""
    text = f'append {name} "{"".join(map(letter, tokens))}"'
    has_room = world.has_room(name, len(tokens))
    if name not in world.tokens:
        never = world.blocks_needed(name, len(tokens)) > world.num_blocks - 1
        answer = "now" if has_room else "never" if never else "later"
        yield Operation("may_start", (len(tokens), answer), {}, text)
    refused = () if has_room else ("OutOfBlocks", "append")
    method = "append" if has_room else "refused"
    yield Operation(method, (*refused, name, *tokens), {}, text)
