"""Recording on a GPU, with a pretended one: which error is raised, and what happens without a graph."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from toys import Planes, make_images

from adaptive_smoothing.attacks.engine.recorder import RecordedObjective, Recorder, RecordingError
from adaptive_smoothing.attacks.objectives import loss_and_gradient, margin


class Graph:
    """A graph that notes what is called. An error while it is recorded also makes its end fail, as on a GPU."""

    def __init__(self):
        self.calls, self.broken = [], False

    def capture_begin(self, pool):
        self.calls.append("begin")

    def capture_end(self):
        self.calls.append("end")
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def recorder(monkeypatch):
    graph, stream = Graph(), SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "Stream": lambda device: stream,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "device": lambda device: nullcontext(),
        "MemPool": lambda: SimpleNamespace(id=(0, 1)),
        "use_mem_pool": lambda pool: nullcontext(),
        "synchronize": lambda: None,
        "CUDAGraph": lambda: graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    recorder = Recorder(torch.device("cuda", 99))
    recorder.graph = graph
    return recorder


def test_a_step_is_made_before_one_is_recorded(recorder):
    calls = recorder.graph.calls
    assert recorder.record(lambda: calls.append("step")) is recorder.graph
    assert calls == ["step", "begin", "step", "end"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), ValueError("mine"), KeyboardInterrupt()])
def test_an_error_of_the_step_is_raised_and_ends_the_recording(recorder, error):
    def step():
        if recorder.graph.calls:
            recorder.graph.broken = True
            raise error

    with pytest.raises(type(error)) as raised:
        recorder.record(step)
    assert raised.value is error and recorder.graph.calls == ["begin", "end"]


def test_a_step_that_cannot_be_recorded_raises_an_error_of_its_own(recorder):
    def step():
        if recorder.graph.calls:
            raise RuntimeError("not permitted when stream is capturing")

    with pytest.raises(RecordingError, match="not permitted"):
        recorder.record(step)
    assert recorder.graph.calls == ["begin", "end"]


def test_an_error_of_the_first_step_begins_no_recording(recorder):
    with pytest.raises(ZeroDivisionError):
        recorder.record(lambda: 1 / 0)
    assert recorder.graph.calls == []


def test_an_objective_with_a_recorded_answer_returns_it_and_its_gradient():
    model, images = Planes(), make_images(4)
    labels = model(images).argmax(1)
    objective = RecordedObjective(margin, model, images, labels)
    objective.answer = loss_and_gradient(margin, model, objective.images, labels)
    objective.graph = SimpleNamespace(replay=lambda: None)
    found, expected = (loss_and_gradient(other, model, images, labels) for other in (objective, margin))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_an_objective_computes_batches_of_another_size_itself():
    """One image would otherwise be copied into all rows."""
    model, images = Planes(), make_images(4)
    labels = model(images).argmax(1)
    objective = RecordedObjective(margin, model, images, labels)
    objective.answer, objective.graph = loss_and_gradient(margin, model, images, labels), SimpleNamespace(replay=None)
    found, expected = (loss_and_gradient(other, model, images[:1], labels[:1]) for other in (objective, margin))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
