"""Memory of a GPU: limits, the memory of a batch, smaller batches, and memory that is given back."""

import os
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.models import memory
from adaptive_smoothing.models.memory import (
    bytes_per_image,
    limit_memory,
    limited_memory,
    memory_given_back,
    parse_bytes,
    with_smaller_batches,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("6G", 6 * 2**30), ("6 GiB", 6 * 2**30), ("1.5g", 3 * 2**29), ("500M", 500 * 2**20), ("2T", 2**41), ("4K", 4096)],
)
def test_an_amount_of_memory_is_read(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "G", "6X", "-1G", "0", "1.2.3G", "six", "6144", 6, "6B"])
def test_an_amount_that_cannot_be_read_is_named(text):
    with pytest.raises(ValueError, match="expected an amount of memory such as 6G or 500M, got"):
        parse_bytes(text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_limit_without_a_gpu_is_an_error():
    with pytest.raises(ValueError, match="expected a GPU"):
        limit_memory("6G")
    with pytest.raises(ValueError, match="expected a GPU"), limited_memory("6G", torch.device("cpu")):
        pass


def test_a_limit_holds_for_all_gpus_and_new_processes_until_it_is_lifted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=24 * 2**30))
    monkeypatch.setenv(memory.VARIABLE, "")
    limits: dict[int, float] = {}
    set_share = "set_per_process_memory_fraction"
    monkeypatch.setattr(torch.cuda, set_share, lambda share, device: limits.update({device: share}))
    ads.limit_memory("6G")
    assert limits == {0: 0.25, 1: 0.25} and os.environ[memory.VARIABLE] == str(6 * 2**30)
    ads.limit_memory(None)
    assert limits == {0: 1.0, 1: 1.0} and memory.VARIABLE not in os.environ


def test_no_limit_needs_no_gpu(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *limit: asked.append(limit))
    with limited_memory(None, torch.device("cpu")):
        pass
    assert not asked


def test_the_memory_of_an_image_is_what_its_backward_pass_needs():
    """A convolution keeps its input, and a ReLU its output, which is the input of the next convolution."""
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*layers).eval().requires_grad_(False)
    assert bytes_per_image(model, torch.rand(2, 3, 16, 16)) == (3 + 8 + 8) * 16 * 16 * 4


def test_measuring_the_memory_of_an_image_keeps_no_tensor_alive():
    """An operation that keeps its own output, such as a softmax, must not be kept alive by it."""
    made = []

    def model(images):
        made.append(weakref.ref(images))
        return images.flatten(1).softmax(1)

    bytes_per_image(model, torch.rand(2, 3, 4, 4))
    assert all(reference() is None for reference in made)


def test_batches_are_halved_until_they_fit():
    tried = []

    def work(size):
        tried.append(size)
        if size > 10:
            raise torch.OutOfMemoryError("too large")
        return size

    assert with_smaller_batches(work, 50) == 6
    assert tried == [50, 25, 12, 6]


def test_an_image_that_does_not_fit_is_an_error():
    def work(size):
        raise torch.OutOfMemoryError("too large")

    with pytest.raises(torch.OutOfMemoryError):
        with_smaller_batches(work, 4)


def test_only_the_outermost_context_gives_memory_back(monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(memory._DEPTH.get()))

    @memory_given_back()
    def inner():
        assert memory._DEPTH.get() == 2

    with pytest.raises(ValueError, match="stopped"), memory_given_back():
        inner()
        assert not emptied
        raise ValueError("stopped")
    assert emptied == [0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_limit_holds_inside_of_its_context_on_a_gpu():
    device = torch.device("cuda")
    before = torch.cuda.get_per_process_memory_fraction(0)
    with limited_memory("1G", device), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * 2**30, dtype=torch.uint8, device=device)
    assert torch.cuda.get_per_process_memory_fraction(0) == before


def test_the_memory_of_a_model_with_a_gradient_inside_is_measured():
    def model(images):
        return torch.autograd.grad((images**3).sum(), images, create_graph=True)[0]

    assert bytes_per_image(model, torch.rand(2, 3, 4, 4)) >= 3 * 4 * 4 * 4


def test_the_memory_of_a_model_with_a_functional_transform_is_unknown():
    def model(images):
        return torch.func.grad(lambda images: (images**3).sum())(images)

    assert bytes_per_image(model, torch.rand(2, 3, 4, 4)) is None


def test_an_error_while_memory_is_measured_is_raised():
    def model(images):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        bytes_per_image(model, torch.rand(2, 3, 4, 4))


@pytest.fixture
def gpu(monkeypatch):
    """A pretended GPU with 8 GiB; the list holds its limits, the latest last."""
    limits = [1.0]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=8 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: limits[-1])
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: limits.append(share))
    return limits


def test_of_nested_limits_the_lower_one_holds_and_an_error_restores_the_one_before(gpu):
    device = torch.device("cuda", 0)
    with limited_memory("4G", device):
        with pytest.raises(KeyError), limited_memory("2G", device):
            assert gpu[-1] == 0.25
            raise KeyError
        with limited_memory("6G", device):
            assert gpu[-1] == 0.5
        assert gpu[-1] == 0.5
    assert gpu[-1] == 1.0


def test_a_batch_takes_at_most_half_of_the_limit(gpu):
    device = torch.device("cuda", 0)
    assert memory.batch_bytes(device) == 4 * 2**30
    with limited_memory("3G", device):
        assert memory.batch_bytes(device) == 3 * 2**29
    with limited_memory("80G", device):
        assert gpu[-1] == 1.0
