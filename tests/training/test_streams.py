"""Two streams: shared weights, separate batch norms."""

import torch

from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.training.streams import TwoStreams
from adaptive_smoothing.training.weights import batch_norms


def two_streams():
    torch.manual_seed(0)
    return TwoStreams(build("wide_resnet", depth=10, width=0.25, num_classes=2))


def test_only_batch_norms_are_separate():
    model = two_streams()
    first, second = dict(model.first.named_parameters()), dict(model.second.named_parameters())
    separate = {name for name in first if first[name] is not second[name]}
    of_norms = {
        f"{name}.{kind}"
        for name, module in model.first.named_modules()
        for kind in ("weight", "bias")
        if isinstance(module, torch.nn.BatchNorm2d)
    }
    assert separate == of_norms
    assert len(list(model.parameters())) == len(first) + len(of_norms)


def test_statistics_are_separate_and_gradients_add_up():
    model = two_streams()
    dark, light = torch.rand(8, 3, 8, 8) * 0.2, 0.8 + torch.rand(8, 3, 8, 8) * 0.2
    model.first(dark).sum().backward()
    alone = model.first.stem.weight.grad.clone()
    assert model.second.norm.weight.grad is None
    model.second(light).sum().backward()
    assert not torch.equal(model.first.stem.weight.grad, alone)
    means = [batch_norms(stream)[0].running_mean for stream in (model.first, model.second)]
    assert not torch.allclose(*means)
    model.eval()
    assert torch.equal(model(dark), model.first(dark)) and not torch.allclose(model(dark), model.second(dark))


def test_weights_stay_shared_when_the_network_moves_to_another_type():
    model = two_streams().to(torch.float64)
    assert model.first.stem.weight is model.second.stem.weight
