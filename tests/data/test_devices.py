"""A device is checked without memory of a GPU."""

import pytest
import torch

from adaptive_smoothing.data.devices import check_device, check_devices


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs, where nothing can be allocated."""

    def refuse(*size, device):
        raise AssertionError(f"allocated on {device}")

    monkeypatch.setattr(torch, "empty", refuse)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_nothing_is_allocated_on_a_gpu(two_gpus):
    check_devices(["cuda", "cuda:0", "cuda:1"])
    check_device(torch.device("cuda", 1))
    for device in ("cuda:2", "cuda:9"):
        message = f"expected a device of this machine, got '{device}': CUDA error: invalid device ordinal; try 'cpu'"
        with pytest.raises(ValueError, match=message):
            check_device(device)


def test_devices_are_a_list():
    for devices, message in (("cpu", r"write \['cpu'\] for one"), ((name for name in ("cpu", "cpu")), r"pass list\(")):
        with pytest.raises(TypeError, match=f"expected devices as a list of names, got .*: {message}"):
            check_devices(devices)


def test_devices_that_do_not_exist_are_refused(monkeypatch):
    check_devices(["cpu", "cpu"])
    with pytest.raises(ValueError, match=r"got 'gpu': Expected one of cpu, cuda, .*: gpu; try 'cpu'"):
        check_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"got 'cuda': .+; try 'cpu'"):
            check_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="got 'gpu': Expected one of cpu"):
        check_device("gpu")
