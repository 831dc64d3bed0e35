"""PGD on linear models, whose optimal perturbation is known; its options, its errors and its warnings."""

import copy
import warnings

import pytest
import torch
from torch import nn
from toys import Planes, make_images

from adaptive_smoothing.attacks.objectives import KLDivergence, cross_entropy, logit_margin, margin
from adaptive_smoothing.attacks.pgd import PGD, MaskedGradientWarning, ascend, pgd_step
from adaptive_smoothing.data.conversion import from_tensors
from adaptive_smoothing.evaluation.cascade_run import EvaluationOptions
from adaptive_smoothing.evaluation.evaluate import evaluate
from adaptive_smoothing.threat import L2, Linf


@pytest.fixture
def linear():
    """Return a model whose optimal perturbation is known."""
    return Planes(classes=2)


def labelled(model):
    """Return 64 images and the classes that the model predicts."""
    images = make_images()
    return images, model(images).argmax(1)


@pytest.mark.parametrize("threat", [Linf(0.05), L2(0.1), Linf(torch.linspace(0.01, 0.05, 64))])
@pytest.mark.parametrize("objective", [cross_entropy, margin])
@pytest.mark.parametrize("random_start", [False, True])
def test_pgd_reaches_the_optimum_of_a_linear_model(linear, threat, objective, random_start):
    x, y = labelled(linear)
    # The optimum can be farther from a random start than the default steps reach.
    step = torch.as_tensor(threat.eps).max().item() / 4 if random_start else None
    attack = PGD(threat, steps=20, step_size=step, objective=objective, random_start=random_start)
    adversarial = attack(linear, x, y)
    gain = (logit_margin(linear(adversarial), y) - logit_margin(linear(x), y)).double()
    best = torch.as_tensor(threat.eps) * threat.dual_norm(linear.weight[:1] - linear.weight[1:])
    assert torch.allclose(gain, best.double().expand(64), rtol=2e-3)
    assert (threat.distance(adversarial, x) <= torch.as_tensor(threat.eps) + 1e-6).all()


def test_stopping_early_fools_the_same_images(linear):
    x, y = labelled(linear)
    full, early = (PGD(Linf(0.02), steps=10, stop_when_fooled=flag)(linear, x, y) for flag in (False, True))
    robust = [linear(adversarial).argmax(1) == y for adversarial in (full, early)]
    assert torch.equal(*robust)
    assert 0 < robust[0].sum() < 64  # the radius fools some images


def test_stopping_early_with_a_radius_per_image(linear):
    x, y = labelled(linear)
    radius = torch.linspace(0, 0.05, 64)
    adversarial = PGD(Linf(radius), steps=10, stop_when_fooled=True)(linear, x, y)
    assert (Linf(0).distance(adversarial, x) <= radius + 1e-6).all()


def test_stopping_early_with_a_step_size_per_image(linear):
    """A step size of zero leaves its image in place, also after fooled images are dropped."""
    x, y = labelled(linear)
    moves = torch.arange(64) % 3 > 0
    attack = PGD(Linf(0.008), steps=10, step_size=torch.where(moves, 0.002, 0.0), stop_when_fooled=True)
    which = torch.arange(7, 50)
    with pytest.warns(MaskedGradientWarning):
        adversarial, part = attack(linear, x, y), attack.take(which)(linear, x[which], y[which])
    assert torch.equal((adversarial != x).flatten(1).any(1), moves)
    fooled = linear(adversarial).argmax(1) != y
    assert 5 < fooled.sum() < moves.sum()
    torch.testing.assert_close(part, adversarial[which])


def test_the_worst_iterate_is_kept():
    """An earlier iterate fools the model, the last one does not."""

    class Bump(nn.Module):
        def forward(self, x):
            shift = (x - 0.5).flatten(1).mean(1)
            score = torch.where(shift < 0.025, 1 - 60 * shift, 3 + 0 * shift - shift)
            return torch.stack([score, torch.zeros_like(score)], 1)

    x, y = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.long)
    model = Bump().eval()
    adversarial = PGD(Linf(0.1), steps=5, step_size=0.02)(model, x, y)
    last = PGD(Linf(0.1), steps=5, step_size=0.02).last_iterate(model, x, y, torch.Generator())
    assert (model(adversarial).argmax(1) == 1).all()
    assert (model(last).argmax(1) == 0).all()


def test_the_default_step_size_is_that_of_the_paper(linear):
    iterates = []
    observe = lambda active, iterate, loss, logits: iterates.append(iterate)  # noqa: E731
    images, labels = labelled(linear)
    ascend(cross_entropy, linear, images, labels, Linf(8 / 255), steps=20, start=images, observe=observe)
    assert len(iterates) == 21
    moved = (iterates[1] - iterates[0]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.0027), rtol=0, atol=1e-6)


def test_the_same_seed_gives_the_same_images(linear):
    x, y = labelled(linear)
    one, two, other = (PGD(Linf(0.05), steps=1, random_start=True, seed=s)(linear, x, y) for s in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_pgd_works_inside_no_grad_and_leaves_no_gradients(linear):
    x = make_images()
    with torch.no_grad():
        adversarial = PGD(Linf(0.05), steps=2)(linear, x, linear(x).argmax(1))
    assert not adversarial.requires_grad and linear.weight.grad is None


def test_zero_steps_are_an_error():
    with pytest.raises(ValueError, match="at least 1 step"):
        PGD(Linf(0.1), steps=0)


def test_a_model_in_train_mode_is_an_error():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, 2)).train()
    with pytest.raises(ValueError, match="eval"):
        PGD(Linf(0.1))(model, make_images(), torch.zeros(64, dtype=torch.long))


def test_images_outside_the_box_are_an_error(linear):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        PGD(Linf(0.1))(linear, make_images() * 3, torch.zeros(64, dtype=torch.long))


def test_the_step_is_steepest_ascent_followed_by_a_projection():
    """Along the first pixel the ball binds, along the second the box, along the third neither."""
    clean = torch.tensor([0.5, 0.95, 0.5]).view(1, 3, 1, 1).repeat(2, 1, 1, 1)
    iterate, gradient = clean + torch.tensor([0.08, 0.0, -0.05]).view(1, 3, 1, 1), torch.tensor([2.0, 1.0, 0.5])
    found = pgd_step(Linf(0.1), iterate, gradient.view(1, 3, 1, 1).repeat(2, 1, 1, 1), torch.tensor([0.07, 0.0]), clean)
    assert found[0].flatten().tolist() == pytest.approx([0.6, 1.0, 0.52])
    torch.testing.assert_close(found[1], iterate[1])


def test_ascend_observes_every_iterate_and_drops_images(linear):
    x, seen = make_images(4), []
    y = linear(x).argmax(1)

    def observe(active, iterate, loss, logits):
        seen.append((active, len(iterate)))
        torch.testing.assert_close(logits, linear(iterate))
        return torch.arange(len(iterate)) > 0

    last = ascend(margin, linear, x, y, Linf(0.05), steps=3, start=x, observe=observe)
    assert seen[0] == (slice(None), 4) and [part.tolist() for part, _ in seen[1:]] == [[1, 2, 3], [2, 3], [3]]
    expected = PGD(Linf(0.05), steps=3, objective=margin).last_iterate(linear, x, y, torch.Generator())
    assert torch.equal(last, expected[3:])


class NotANumber(nn.Module):
    """Finite where pixels are multiples of 1/255; elsewhere the logits or the gradient are NaN."""

    def __init__(self, linear, where):
        super().__init__()
        self.linear, self.where = linear, where

    def forward(self, x):
        off_grid = ((x * 255 - (x * 255).round()).abs() > 1e-3).flatten(1).any(1)
        nan = torch.where(off_grid, torch.nan, 0.0)[:, None]
        if self.where == "gradient":
            zero = (x.flatten(1).sum(1, keepdim=True) * 0).abs().sqrt()  # finite, with a NaN gradient
            return self.linear(x) + zero
        return self.linear(x) + nan


@pytest.mark.parametrize("where", ["logits", "gradient"])
@pytest.mark.parametrize("threat", [Linf(0.05), L2(1.0)])
@pytest.mark.parametrize("stop", [False, True])
def test_nan_never_counts_as_robust(linear, where, threat, stop):
    x = (make_images() * 255).round() / 255
    y = linear(x).argmax(1)
    data = from_tensors((x * 255).round().to(torch.uint8), y)
    attack = PGD(threat, steps=3, stop_when_fooled=stop)
    with pytest.raises(ValueError, match="NaN"):
        evaluate(NotANumber(linear, where).eval(), data, attack)


def test_the_kl_objective_needs_all_images_of_its_reference(linear):
    x, y = labelled(linear)
    attack = PGD(Linf(0.05), steps=5, objective=KLDivergence(linear(x)), stop_when_fooled=True, random_start=True)
    with pytest.raises(ValueError, match="stop_when_fooled off"):
        attack(linear, x, y)


def test_the_steepest_direction_of_a_tiny_gradient_has_unit_norm():
    gradient = 1e-25 * torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(L2(1.0).steepest(gradient).flatten(1).norm(dim=1), torch.ones(3))


def test_a_zero_gradient_gives_a_warning(linear):
    class Saturated(nn.Module):
        def forward(self, x):
            return 1e4 * linear(x)

    x, y = labelled(linear)
    with pytest.warns(MaskedGradientWarning, match="does not show that they are robust"):
        PGD(Linf(0.05), steps=3)(Saturated().eval(), x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adversarial = PGD(Linf(0.05), steps=3, objective=margin)(Saturated().eval(), x, y)
        PGD(Linf(0.05), steps=3)(linear, x, y)
        PGD(Linf(0.0), steps=3)(linear, x, y)
    assert (linear(adversarial).argmax(1) != y).any()


def test_a_model_without_a_gradient_gives_a_warning(linear):
    class Detached(nn.Module):
        def forward(self, x):
            return linear(x.detach())

    x, y = labelled(linear)
    with pytest.warns(MaskedGradientWarning, match="the gradient was zero for 64 of 64 images"):
        adversarial = PGD(Linf(0.05), steps=3)(Detached().eval(), x, y)
    assert torch.equal(adversarial, x)


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_evaluate_gives_each_image_its_radius(linear, device):
    x = (make_images() * 255).round() / 255
    y = linear(x).argmax(1)
    y[::2] = 1 - y[::2]  # every second image is misclassified and not attacked
    radius = torch.where(torch.arange(64) % 4 == 1, 1.0, 0.0)
    data = from_tensors((x * 255).round().to(torch.uint8), y)
    model, options = copy.deepcopy(linear).to(device), EvaluationOptions(batch_size=10)
    result = evaluate(model, data, PGD(Linf(radius), steps=20, stop_when_fooled=True), options=options)
    assert torch.equal(result.robust_correct, torch.arange(64) % 4 == 3)


@pytest.mark.parametrize("random_start", [False, True])
def test_smaller_batches_give_the_same_images_if_memory_runs_out(linear, random_start):
    """Each image has its own radius and step size, and the random start of its position in the whole batch."""
    x, y = labelled(linear)
    sizes = []

    class Small(nn.Module):
        def forward(self, images):
            sizes.append(len(images))
            if len(images) > 20:
                raise torch.OutOfMemoryError("too large")
            return linear(images)

    attack = PGD(
        Linf(torch.linspace(0.01, 0.05, 64)),
        steps=3,
        step_size=torch.linspace(0.005, 0.02, 64),
        random_start=random_start,
    )
    assert torch.equal(attack(Small().eval(), x, y), attack(linear, x, y))
    assert sizes[:2] == [64, 32] and max(sizes[2:]) == 16
