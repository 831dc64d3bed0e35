"""The identity of a model changes with its weights, preprocessing and code, and with nothing else."""

import json

import pytest
import torch
from torch import nn

import adaptive_smoothing as ads
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.identity import Identity, _weights_digest


def network(seed: int = 0, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(seed)
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(8, 7)).eval()


def differences(found: nn.Module, expected: nn.Module) -> str:
    stored = json.loads(json.dumps(Identity.of(expected).to_json()))
    return Identity.of(found).differences(Identity.from_json(stored))


def wrapped(**options: object) -> nn.Module:
    return ads.wrap(network(), **{"mean": (0.4, 0.5, 0.6), "std": 0.25, "size": 32, **options})


@pytest.mark.parametrize(
    "same",
    [
        lambda model: model,
        lambda model: model.double(),
        lambda model: model.to(memory_format=torch.channels_last),
        lambda model: model.requires_grad_(True),
        lambda model: model.to("cuda") if torch.cuda.is_available() else model,
    ],
)
def test_devices_layouts_and_casts_without_loss_change_nothing(same):
    assert differences(same(wrapped()), wrapped()) == ""


def test_a_cast_with_loss_is_another_model():
    assert differences(wrapped().bfloat16(), wrapped()).startswith("std") is False
    assert "other weights" in differences(wrapped().bfloat16(), wrapped())
    assert differences(network().half().float(), network()) != ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mean": 0.5}, "mean (0.5, 0.5, 0.5) instead of (0.4, 0.5, 0.6)"),
        ({"std": (0.25, 0.25, 0.2)}, "std (0.25, 0.25, 0.2) instead of (0.25, 0.25, 0.25)"),
        ({"size": 64}, "size 64 instead of 32"),
        ({"size": (32, 48)}, "size (32, 48) instead of 32"),
        (
            {"size": None},
            "preprocessing mean (0.4, 0.5, 0.6) std (0.25, 0.25, 0.25) instead of size 32 resize bilinear;",
        ),
        ({"mean": 0.5, "size": 48}, "size 48 instead of 32, mean (0.5, 0.5, 0.5) instead of (0.4, 0.5, 0.6)"),
    ],
)
def test_another_preprocessing_is_named(options, expected):
    assert differences(wrapped(**options), wrapped()).startswith(expected)
    assert "weights" not in differences(wrapped(**options), wrapped())


def test_other_weights_and_buffers_are_noticed():
    for name in ("5.bias", "1.running_mean", "1.num_batches_tracked"):
        changed = network()
        tensor = changed.state_dict()[name]
        tensor.add_(1 if name.endswith("tracked") else 1e-6)
        assert differences(changed, network()).startswith("other weights (digest ")
    normalised = build("wide_resnet", depth=10, width=1, mean=(0.5, 0.5, 0.5)).eval()
    again = build("wide_resnet", depth=10, width=1).eval()
    again.load_state_dict(normalised.state_dict())
    assert differences(again, normalised).startswith("mean (0.4914, 0.4822, 0.4465) instead of (0.5, 0.5, 0.5)")


def test_buffers_that_a_state_dict_lacks_are_part_of_the_weights():
    one, other = network(), network()
    for factor, model in ((1.0, one), (2.0, other)):
        model.register_buffer("factor", torch.tensor(factor), persistent=False)
    assert "other weights" in differences(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
def test_sparse_buffers_are_compared(dtype):
    one, other = network(), network()
    for number, model in enumerate((one, other)):
        model.register_buffer("mask", torch.tensor([[1, number], [0, 1]], dtype=dtype).to_sparse())
    assert differences(one, one) == "" and "other weights" in differences(one, other)


def test_other_code_with_the_same_weights_is_noticed():
    found = differences(network(activation=nn.SiLU), network())
    assert found.startswith("the same weights but logits that differ by ") and found.endswith("settings changed")


def test_other_code_that_declares_another_shape_is_noticed():
    expected, other = Identity.of(network()), network(activation=nn.GELU)
    other.shape = (3, 64, 64)
    words = "the same weights but logits for images of shape (3, 64, 64) instead of (3, 32, 32): its code or settings"
    assert Identity.of(other).differences(expected).startswith(words)
    assert "logits that differ by" in Identity.of(other, expected.shape).differences(expected)
    same = network()
    same.shape = (3, 64, 64)
    assert Identity.of(same, expected.shape).differences(expected) == ""


class Own(nn.Module):
    """A user's network with state that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.temperature = network(), 1.0
        self.prior, self.tables, self.calls = torch.zeros(7), {"a": [torch.ones(7)]}, torch.tensor(0)
        self.unlisted = [nn.Linear(7, 7)]
        nn.init.eye_(self.unlisted[0].weight)
        nn.init.zeros_(self.unlisted[0].bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = self.network(images)
        return self.unlisted[0](self.last) / self.temperature + self.prior * self.tables["a"][0]

    def get_extra_state(self) -> dict[str, object]:
        return {"threshold": getattr(self, "threshold", 0.0)}

    def set_extra_state(self, state: object) -> None: ...


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.prior.__setitem__(6, 5.0), "another value of prior, which is neither a parameter nor"),
        (lambda model: model.tables["a"][0].mul_(2), "another value of tables.a.0, which"),
        (lambda model: model.unlisted[0].bias.data.add_(1e-6), "another value of unlisted.0.bias, which"),
        (lambda model: setattr(model, "threshold", 0.5), "another value of _extra_state, which"),
        (lambda model: setattr(model, "temperature", 1.015), "the same weights but logits that differ by 1.5 %"),
        (lambda model: setattr(model.network[1], "eps", 1e-2), "the same weights but logits that differ by 0."),
    ],
)
def test_state_outside_of_weights_is_part_of_the_identity(change, words):
    changed = Own().eval()
    assert differences(changed, Own().eval()) == ""
    change(changed)
    assert differences(changed, Own().eval()).startswith(words)


def test_parameters_and_buffers_in_lists_are_not_other_tensors():
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.recurrent = network(), nn.LSTM(7, 7)  # has its parameters in a list as well
            self.layers, self.statistics = [self.network], (self.network[1].running_mean,)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.recurrent(self.layers[0](images))[0]

    model, changed = Lists().eval(), Lists().eval()
    assert Identity.of(model).state == {}
    changed.load_state_dict(model.state_dict())
    assert differences(changed, model) == ""
    changed.network[5].bias.data.add_(1)
    assert "neither a parameter nor a buffer" not in differences(changed, model)


def test_a_model_that_draws_random_numbers_has_no_identity():
    class Random(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(images.mean((2, 3)))

    with pytest.raises(ValueError, match=r"expected the same logits .* it draws random numbers .* ads.SmoothedClass"):
        Identity.of(Random().eval())


def test_what_a_forward_pass_computes_is_not_part_of_the_identity():
    used = Own().eval()
    used(torch.rand(1, 3, 32, 32))
    used.mask = torch.eye(3).to_sparse()  # has no bytes to compare
    assert not {"calls", "last"} & Identity.of(used).state.keys()
    assert differences(used, Own().eval()) == "" == differences(Own().eval(), used)


def test_in_half_precision_what_a_forward_pass_computes_is_not_part_of_the_identity():
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.last = images
            return self.network(images)

    one, other = Remembers().bfloat16().eval(), Remembers().bfloat16().eval()
    for model in (one, other):
        model(torch.rand(1, 3, 32, 32, dtype=torch.bfloat16))
    assert differences(one, other) == "" == differences(other, one)


class Plain(nn.Module):
    """A network with its preprocessing in plain attributes, which no digest covers."""

    def __init__(self, mean: float = 0.5, size: int | None = None, inputs: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean, self.size = mean, size
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 7)) if inputs else network()
        self.eval()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.size is not None:
            images = nn.functional.interpolate(images, self.size)
        return self.network(images - self.mean)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Plain(0.1, inputs=28 * 28), Plain(inputs=28 * 28)),
        (Plain(0.1, inputs=3 * 96 * 96), Plain(inputs=3 * 96 * 96)),
        (Plain(0.1).bfloat16(), Plain().bfloat16()),
        (Plain(size=32), Plain()),  # differs for larger images only
        (ads.wrap(Plain(0.1), shape=(3, 64, 64)), ads.wrap(Plain())),
    ],
)
def test_preprocessing_in_plain_attributes_is_noticed(found, expected):
    identity = Identity.from_json(json.loads(json.dumps(Identity.of(expected).to_json())))
    difference = Identity.of(found, identity.shape).differences(identity)
    assert difference.startswith("the same weights but logits that differ by ")
    assert Identity.of(expected, identity.shape).differences(identity) == ""


def test_logits_of_larger_images_are_compared_if_they_are_stored():
    stored = Identity.of(Plain()).to_json()
    assert len(stored["larger"]) == 14 and "larger" not in Identity.of(Plain(inputs=3072)).to_json()
    del stored["larger"]  # as in older files
    assert Identity.of(Plain(size=32)).differences(Identity.from_json(stored)) == ""


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's own code
def test_a_script_in_half_precision_is_compared():
    images = torch.rand(2, 3, 32, 32).bfloat16()
    one, other = (torch.jit.trace(network(activation=kind).bfloat16(), images) for kind in (nn.ReLU, nn.GELU))
    assert differences(one, one) == "" and "logits that differ" in differences(other, one)


def test_the_copy_in_float32_shares_no_memory_with_the_model():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.network(images)

    model = Counts().bfloat16().eval()
    assert Identity.of(model).logits and model.calls == 0


def test_a_model_that_runs_in_half_precision_only_has_no_logits_to_compare():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network().bfloat16()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.network(images.bfloat16())

    assert Identity.of(Half().eval()).logits == ()


def test_a_tensor_that_the_first_forward_pass_computes_may_be_missing():
    """As in timm's LeViT, which keeps such a tensor for each device."""
    used, fresh = Own().eval(), Own().eval()
    used.tables["cuda:0"] = torch.ones(3)
    assert differences(fresh, used) == "" == differences(used, fresh)


def test_a_model_that_does_not_run_is_another_one():
    words = r"the same weights but no finite logits for images of shape (3, 32, 32): it does not accept them"
    complete = Identity.of(network())
    assert Identity(complete.weights).differences(complete) == words
    assert complete.differences(Identity(complete.weights)) == ""  # nothing to compare with
    exact = network().bfloat16().float()
    assert differences(exact.bfloat16(), network().bfloat16().float()) == ""  # no logits, because of the precision


def test_identities_of_older_versions_are_read():
    """They have the logits of five classes, and nothing about other tensors."""
    stored = Identity.of(Own().eval()).to_json()
    del stored["state"]
    stored["logits"] = [1.01 * number for row in (0, 7) for number in stored["logits"][row : row + 5]]
    assert Identity.of(Own().eval()).differences(Identity.from_json(stored)) == ""
    stored["logits"][9] += 1
    assert "logits that differ" in Identity.of(Own().eval()).differences(Identity.from_json(stored))


@pytest.mark.parametrize("older", [False, True])
def test_few_classes_of_older_versions_may_differ_as_much_as_others(older):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)).eval()
    stored = Identity.of(model).to_json()
    assert stored["state"] == {}
    stored["logits"] = [1.01 * number for number in stored["logits"]]
    if older:
        del stored["state"]
    assert (Identity.of(model).differences(Identity.from_json(stored)) == "") is older


def test_the_output_that_is_used_is_part_of_the_preprocessing():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = network(0), network(1)

        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"a": self.a(images), "b": self.b(images)}

    torch.manual_seed(0)
    one, other = (ads.wrap(Two(), output=name) for name in "ab")
    assert differences(other, one) == "output b instead of a"


def test_a_model_that_accepts_no_test_image_has_an_identity_without_logits(linear):
    assert "logits" not in Identity.of(linear).to_json() and differences(linear, linear) == ""
    assert ads.wrap(linear, shape=(3, 8, 8)).shape == (3, 8, 8)
    assert len(Identity.of(ads.wrap(linear, shape=(3, 8, 8))).logits) == 8


@pytest.mark.parametrize("shape", [8, "32x32", (32, 32), (-1, 2, 3), [3, "a", None], torch.Size([64, 8, 8])])
def test_an_attribute_that_is_not_a_shape_of_images_is_tried_or_left_out(shape):
    model = network()
    model.shape = shape
    assert Identity.of(model).shape == (3, 32, 32) and differences(model, network()) == ""


def test_the_shape_of_a_vector_is_not_tried():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 3)).eval()
    model.shape = (3072,)
    assert Identity.of(model).shape == (3, 32, 32)


def test_a_model_in_train_mode_is_refused_and_not_changed():
    model = network().train()
    before = model[1].running_mean.clone()
    with pytest.raises(ValueError, match="expected a model in eval mode, got its layer '1'"):
        Identity.of(model)
    assert torch.equal(model[1].running_mean, before)


class Positions(nn.Module):
    """A model whose buffer grows with the images, as caches of positions do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)
        self.register_buffer("grid", torch.zeros(32, 32))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[-1] > len(self.grid):
            self.grid = torch.zeros(images.shape[-2:])
        return self.head((images + self.grid[: images.shape[-2], : images.shape[-1]]).mean((2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_model_is_not_changed_by_its_identity(dtype):
    model = Positions().eval().to(dtype)
    identity = Identity.of(model)
    assert model.grid.shape == (32, 32) and identity.larger
    assert identity.weights == Identity.of(model, (3, 32, 32)).weights == _weights_digest(model)


def test_a_model_that_cannot_be_copied_is_not_run_with_larger_images():
    class NoCopy(Positions):
        def __deepcopy__(self, memo: dict[int, object]) -> None:
            raise TypeError("no copies")

    model = NoCopy().eval()
    identity = Identity.of(model)
    assert model.grid.shape == (32, 32) and identity.logits and not identity.larger


def test_buffers_that_a_first_pass_fills_do_not_tell_a_used_model_from_a_new_one():
    class Lazy(Positions):
        def __init__(self) -> None:
            super().__init__()
            self.grid = None

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.grid = torch.zeros(32, 32) if self.grid is None else self.grid
            return super().forward(images)

    model = Lazy().eval()
    new = Identity.of(model)
    model(torch.rand(1, 3, 32, 32))
    assert not Identity.of(model).differences(new)
