"""The picture of an engine's run: who wrote, waited and gave up blocks, and whose each block is."""

from pa_tutorial.attention.tiny_lm import encode, load
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.exercises.pages import Pages
from pa_tutorial.viz.serving import History, Moment, draw_serving, moments, preemptions
from tests.simt.microscope.pictures import require_readable, texts_of


def run(num_blocks: int, **params: int) -> History:
    engine, history = Engine(load(), Pages(num_blocks, block_size=4)), []
    requests = [
        engine.add(encode(prompt).tolist(), SamplingParams(max_tokens=6, **params))
        for prompt in ("The for", "A class")
    ]
    while not engine.is_idle:
        engine.step()
        history.append(moments(engine, requests))
    return history


def test_a_preempted_sequence_waits_and_has_no_blocks() -> None:
    history = run(6)
    ((name, step),) = preemptions(history).items()
    assert name == "b"
    assert history[step]["b"] == Moment(0, None, [])
    assert history[step - 1]["b"].blocks
    figure = draw_serving(history, 6)
    assert figure.get_suptitle().startswith("5 blocks serve 2 sequences: b gives up its blocks in")
    assert texts_of(figure).count("×") == 1
    require_readable(figure)
    assert "b waits 6 steps" in draw_serving(run(4), 4).get_suptitle()


def test_a_fork_writes_its_first_token_in_the_step_of_the_prompt() -> None:
    history = run(16, num_samples=2)
    assert list(history[0]) == ["a", "b", "c", "d"]
    assert history[0]["b"].num_computed == 0
    assert history[0]["b"].token == history[0]["a"].token
    assert history[0]["b"].blocks == history[0]["a"].blocks  # drawn half and half
