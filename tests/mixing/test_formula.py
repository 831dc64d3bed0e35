"""Eqs. adap_sm_1 to adap_sm_4 against their plain form, at their ends, and where the plain form breaks."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from adaptive_smoothing.mixing.formula import (
    alpha_from_gamma,
    gamma_from_alpha,
    log_probabilities,
    mix_log_probabilities,
    mix_logits,
    mix_normalised,
    mix_sum,
)


def random_logits(images: int = 6, classes: int = 4, scale: float = 3.0, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(0)
    g = scale * torch.randn(images, classes, generator=generator, dtype=dtype)
    h = scale * torch.randn(images, classes, generator=generator, dtype=dtype)
    return g, h


def plain(g: Tensor, h: Tensor, alpha: float | Tensor) -> Tensor:
    return ((1 - alpha) * g.softmax(-1) + alpha * h.softmax(-1)).log()


def extreme_logits() -> tuple[Tensor, Tensor]:
    """Every way in which two confident classifiers over three classes can agree or disagree."""
    rows = torch.tensor(list(product([-1e4, 0.0, 1e4], repeat=3)))
    g, h = (index.flatten() for index in torch.meshgrid(*[torch.arange(len(rows))] * 2, indexing="ij"))
    return rows[g], rows[h]


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.3, 0.5, 0.99, 1.0])
def test_equals_the_plain_formula_in_float64(alpha):
    g, h = random_logits()
    torch.testing.assert_close(mix_logits(g, h, alpha), plain(g, h, alpha), rtol=1e-12, atol=1e-12)


def test_float32_agrees_with_float64():
    g, h = random_logits(200, 10, 10.0)
    single = mix_logits(g.float(), h.float(), 0.7)
    torch.testing.assert_close(single.double(), mix_logits(g, h, 0.7), rtol=2e-6, atol=2e-6)


def test_is_a_log_probability():
    g, h = random_logits()
    torch.testing.assert_close(mix_logits(g, h, 0.37).logsumexp(1), torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_the_bases_to_the_last_bit(dtype):
    g, h = random_logits(100, 10, 30.0, dtype)
    assert torch.equal(mix_logits(g, h, 0.0), g.log_softmax(1))
    assert torch.equal(mix_logits(g, h, 1.0), h.log_softmax(1))
    alpha = torch.arange(100, dtype=dtype) % 2
    assert torch.equal(mix_logits(g, h, alpha), torch.where(alpha[:, None] == 0, g.log_softmax(1), h.log_softmax(1)))


def test_alpha_per_image_and_per_class():
    g, h = random_logits()
    per_image = torch.linspace(0, 1, 6, dtype=torch.float64)
    per_class = torch.rand(6, 4, dtype=torch.float64)
    torch.testing.assert_close(mix_logits(g, h, per_image), plain(g, h, per_image[:, None]))
    torch.testing.assert_close(mix_logits(g, h, per_image[:, None]), plain(g, h, per_image[:, None]))
    torch.testing.assert_close(mix_logits(g, h, per_class), plain(g, h, per_class))
    torch.testing.assert_close(mix_logits(g, h, torch.tensor(0.5)), plain(g, h, 0.5))


def test_a_square_batch_reads_a_vector_as_one_alpha_per_image():
    g, h = random_logits(4, 4)
    alpha = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    assert torch.equal(mix_logits(g, h, alpha)[:2], g[:2].log_softmax(1))


def test_scales_multiply_the_logits():
    g, h = random_logits()
    torch.testing.assert_close(mix_logits(g, h, 0.6, standard_scale=3.0, robust_scale=0.5), plain(3 * g, 0.5 * h, 0.6))


def test_half_precision_logits_are_mixed_in_float32():
    g, h = random_logits(dtype=torch.float32)
    g, h = g.bfloat16(), h.bfloat16()
    mixed = mix_logits(g, h, 0.999)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, mix_logits(g.float(), h.float(), 0.999))
    assert not torch.equal(mixed, mix_logits(g, h, 1.0))


@pytest.mark.parametrize("alpha", [0.0, 1e-42, 1e-37, 1e-18, 0.5, 1 - 2**-24, 1.0])
def test_confident_bases_give_finite_values_and_derivatives(alpha):
    g, h = (logits.requires_grad_() for logits in extreme_logits())
    weight = torch.full((len(g),), alpha, requires_grad=True)
    mixed = mix_logits(g, h, weight)
    inputs = (g, h, weight)
    first = torch.autograd.grad(mixed.logsumexp(1).sum() - mixed[:, 0].sum(), inputs, create_graph=True)
    assert mixed.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in first)
    if 0 < alpha < 1e-18:  # the second derivative with respect to alpha is about 1 / alpha^2
        inputs = (g, h)
    for gradient in first[: len(inputs)]:
        for second in torch.autograd.grad(gradient.sum(), inputs, retain_graph=True):
            assert second.isfinite().all()


def test_gradients_by_finite_differences():
    g, h = random_logits(3, 3)
    alpha = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (g, h, alpha)]
    assert torch.autograd.gradcheck(mix_logits, inputs)
    assert torch.autograd.gradgradcheck(mix_logits, inputs)


@pytest.mark.parametrize("end", [0.0, 1.0])
def test_alpha_has_its_true_derivative_at_the_ends(end):
    """Zero there would be gradient masking: h / g - 1 at alpha = 0 and 1 - g / h at alpha = 1."""
    g, h = random_logits(1, 4)
    ratio = (h.log_softmax(1) - g.log_softmax(1)).exp()
    alpha = torch.tensor(end, dtype=torch.float64, requires_grad=True)
    expected = ratio - 1 if end == 0 else 1 - 1 / ratio
    curvature = -(expected**2)
    for i in range(4):
        first = torch.autograd.grad(mix_logits(g, h, alpha)[0, i], alpha, create_graph=True)[0]
        torch.testing.assert_close(first, expected[0, i])
        torch.testing.assert_close(torch.autograd.grad(first, alpha)[0], curvature[0, i])


def test_the_derivative_at_an_end_keeps_its_sign_when_it_is_too_large_to_represent():
    alpha = torch.zeros(1, requires_grad=True)
    mix_logits(torch.tensor([[1e4, 0.0]]), torch.tensor([[0.0, 1e4]]), alpha)[0, 1].backward()
    assert alpha.grad is not None and 1e15 < alpha.grad.item() < math.inf


def test_works_under_torch_func_and_compile():
    g, h = random_logits(3, 3, dtype=torch.float32)
    alpha = torch.tensor([0.0, 0.5, 1.0])
    jacobian = torch.func.jacrev(mix_logits, argnums=2)(g, h, alpha)
    forward_mode = torch.func.jacfwd(mix_logits, argnums=2)(g, h, alpha)
    torch.testing.assert_close(jacobian, forward_mode)
    compiled = torch.compile(mix_logits, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(g, h, alpha), mix_logits(g, h, alpha))


def test_an_alpha_of_the_wrong_shape_is_refused():
    g, h = random_logits()
    with pytest.raises(ValueError, match=r"one per image \[6\].*got shape \[5\]"):
        mix_log_probabilities(g, h, torch.zeros(5))


def test_an_alpha_outside_its_range_is_not_mistaken_for_an_end():
    g, h = random_logits()
    assert mix_logits(g, h, -0.1).isnan().all() and mix_logits(g, h, 1.1).isnan().all()


@pytest.mark.parametrize("gamma", [0.0, 1e-3, 1.0, 7.5, math.inf])
def test_gamma_and_alpha_are_inverse(gamma):
    assert gamma_from_alpha(alpha_from_gamma(gamma)) == pytest.approx(gamma)
    as_tensor = torch.tensor(gamma, dtype=torch.float64)
    torch.testing.assert_close(gamma_from_alpha(alpha_from_gamma(as_tensor)), as_tensor)


def test_gamma_of_one_weighs_both_alike():
    assert alpha_from_gamma(1.0) == 0.5
    assert alpha_from_gamma(math.inf) == 1.0 and gamma_from_alpha(1.0) == math.inf


@pytest.mark.parametrize("call", [lambda: alpha_from_gamma(-1.0), lambda: gamma_from_alpha(1.5)])
def test_impossible_weights_are_refused(call):
    with pytest.raises(ValueError, match=r"expected (gamma >= 0|alpha in \[0, 1\])"):
        call()


@pytest.mark.parametrize("on", ["logits", "probabilities"])
def test_mixtures_with_r_equal_their_equations(on):
    g, h = random_logits()
    r, gamma = torch.rand(6, 4, dtype=torch.float64) * 5, 0.8
    r[0] = 0
    a, b = (g, h) if on == "logits" else (g.softmax(1), h.softmax(1))
    total = a + gamma * r * b
    normalised = total / (1 + gamma * r)
    if on == "probabilities":
        total, normalised = total.log(), normalised.log()
    torch.testing.assert_close(mix_sum(g, h, gamma, r, on), total)
    torch.testing.assert_close(mix_normalised(g, h, gamma, r, on), normalised)


@pytest.mark.parametrize("on", ["logits", "probabilities"])
def test_gamma_0_is_the_standard_and_gamma_inf_the_robust_classifier(on):
    g, h = random_logits()
    expected = (g, h) if on == "logits" else (log_probabilities(g), log_probabilities(h))
    r = torch.ones(6, 1, dtype=torch.float64)
    assert torch.equal(mix_normalised(g, h, 0.0, r, on), expected[0])
    assert torch.equal(mix_normalised(g, h, math.inf, r, on), expected[1])


def test_what_is_mixed_must_be_named():
    g, h = random_logits()
    with pytest.raises(ValueError, match="probabilities, logits, got 'logit'"):
        mix_normalised(g, h, 1.0, torch.ones(6, 1), "logit")
