"""Graphs, events and streams: what is asked of torch.cuda, and in which order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from pa_tutorial.bench import device, gpu_streams

Asked = list[str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """torch.cuda, which only notes what it is asked for."""
    notes: Asked = []

    @contextmanager
    def within(name: str) -> Iterator[None]:
        notes.append(f"{name} begins")
        yield
        notes.append(f"{name} ends")

    def note(name: str) -> Callable:
        return lambda *arguments, **options: notes.append(" ".join([name, *map(str, arguments)]))

    class Stream:
        cuda_stream = 7
        wait_stream = staticmethod(note("wait_stream"))
        synchronize = staticmethod(note("stream.synchronize"))

        def __str__(self) -> str:
            return "a stream"

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        record = staticmethod(note("record"))
        synchronize = staticmethod(note("event.synchronize"))

        def elapsed_time(self, end: "Event") -> float:
            notes.append("elapsed_time")
            return 2.5

    graph = SimpleNamespace(replay=note("replay"))
    for name, stand_in in {
        "synchronize": note("synchronize"),
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": lambda: graph,
        "stream": lambda stream: within("stream"),
        "graph": lambda arguments: within("graph"),
        "set_stream": note("set_stream"),
        "current_stream": lambda: "the current stream",
        "get_device_properties": lambda: SimpleNamespace(L2_cache_size=60),
        "mem_get_info": lambda: (50, 100),
        "set_sync_debug_mode": note("set_sync_debug_mode"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return notes


def test_launches_are_warmed_up_on_another_stream_then_captured(asked: Asked) -> None:
    launches = [lambda: asked.append("first"), lambda: asked.append("second")]
    replay = device.captured(launches)
    each = ["first", "second"]
    warm = ["synchronize", "stream begins", *each, "stream ends", "synchronize"]
    assert asked == [*warm, "graph begins", *each, "graph ends"]
    asked.clear()
    replay()
    assert asked == ["replay"]


def test_a_call_is_timed_between_two_events(asked: Asked) -> None:
    assert device.milliseconds(lambda: asked.append("call")) == 2.5
    assert asked[:3] == ["record", "call", "record"]
    assert asked[3:] == ["event.synchronize", "elapsed_time"]


def test_this_gpu_has_a_stream_of_its_own(asked: Asked) -> None:
    found = device.this_gpu()
    assert asked == ["set_stream a stream"]
    assert (found.where, found.l2_bytes, found.free_bytes) == ("cuda", 60, 50)
    assert found.captured is device.captured
    assert found.milliseconds is device.milliseconds


def test_another_stream_begins_behind_the_current_one_and_is_waited_for(asked: Asked) -> None:
    with gpu_streams.side_stream():
        asked.append("work")
    assert asked == [
        "wait_stream the current stream",
        "stream begins",
        "work",
        "stream ends",
        "stream.synchronize",
    ]


def test_waiting_is_allowed_again_after_an_error(asked: Asked) -> None:
    with pytest.raises(RuntimeError), gpu_streams.waiting_raises():
        raise RuntimeError
    assert asked == ["set_sync_debug_mode error", "set_sync_debug_mode default"]
