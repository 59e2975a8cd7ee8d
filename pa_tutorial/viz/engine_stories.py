"""The stories of notebook 16 that `make figures` draws too."""

from matplotlib.figure import Figure

from pa_tutorial.attention.tiny_lm import encode, load
from pa_tutorial.engine.batch import build_batch
from pa_tutorial.engine.engine import Engine
from pa_tutorial.engine.request import SamplingParams
from pa_tutorial.viz.blocks import draw_frames
from pa_tutorial.viz.engine_figures import Film, draw_batch, draw_timeline

PROMPTS = (
    "The for statement",
    "The while",
    "An if statement is",
    "The global",
    "A with",
    "The del",
)
LENGTHS = (9, 3, 12, 4, 2, 7)  # generated tokens of each
ARRIVALS = (0, 0, 1, 3, 3, 6)  # before which step each comes


def tokens(text: str) -> list[int]:
    """As the engine takes them: TinyLM's tokens are bytes."""
    return encode(text).tolist()


def serve(arrivals: tuple[int, ...] = ARRIVALS, **options: int) -> Film:
    """The six requests of the story, in blocks of 4 and chunks of 8 tokens, to their end.

    options  of the Engine
    """
    film = Film(Engine(load(), block_size=4, chunk_size=8, **options))
    coming = list(zip(arrivals, PROMPTS, LENGTHS, strict=True))
    while coming or not film.engine.is_idle:
        while coming and coming[0][0] <= len(film.moments):
            _, prompt, length = coming.pop(0)
            film.add(tokens(prompt), SamplingParams(max_tokens=length))
        film.step()
    return film


def draw_life_of_a_request() -> Figure:
    """The pool after each step, while one request is served."""
    film = Film(Engine(load(), num_blocks=10, block_size=4, chunk_size=8))
    request = film.add(tokens(PROMPTS[0]), SamplingParams(max_tokens=8))
    frames = [film.frame("before the first step: waiting, without a block")]
    while not request.is_finished:
        frames.append(film.frame(f"after step {film.step().step}"))
    return draw_frames(frames, "Blocks are taken when a token needs them, and stay findable")


def draw_batch_of_two() -> Figure:
    """A step in which one sequence decodes and one computes a part of its prompt."""
    film = Film(Engine(load(), num_blocks=12, block_size=4, chunk_size=8))
    film.add(tokens("The while"))
    film.step()
    film.step()
    film.add(tokens("A statement"))
    film.step()
    batch = build_batch(film.engine.scheduler.plan)
    title = "One step: a decodes one token, b computes the first 8 of its prompt"
    return draw_batch(batch, ["a", "b"], title)


def draw_preemption() -> Figure:
    """The six requests in a pool that is too small."""
    title = "× gives up its blocks; hatched, it waits; then it computes its tokens again"
    return draw_timeline(serve(num_blocks=13, token_budget=16).moments, title)
