"""The fine-tuned tail: a mixer made of a copy of the last stage of h that is fine-tuned for the mixture."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import torch
from torch import Tensor, fx, nn

from adaptive_smoothing.mixing.base_classifiers import BaseOutputs, Mixer, MixerOutput
from adaptive_smoothing.mixing.transforms import LogitTransform, without_transform
from adaptive_smoothing.models.features import FeatureTaps, dry_run, find_layer, suggest_branch
from adaptive_smoothing.models.resnet import without_autocast

# Ways to turn features into one vector per image, the input of the last linear layer.
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "flatten": lambda features: features.flatten(1),
    "mean": lambda features: features.mean((2, 3) if features.dim() == 4 else 1),
    "first token": lambda features: features[:, 0],
    "mean of the other tokens": lambda features: features[:, 1:].mean(1),
}


class FineTunedTail(Mixer):
    """A fine-tuned copy of the last layers of h, and a small network that computes a score from its outputs.

    The copy starts with the weights of h. The mean of the logits of h and of the copy, times a learned factor, replaces
    the logits of h. The score is computed from this mean and the last features of the copy. Neither depends on g.
    `FineTunedTail.of(h)` makes the copy.

    Args:
        tail: the copy of the layers after `tap`.
        tap: the layer of h whose output is the input of the copy.
        hidden: the width of the network that computes the score.
        shape: the shape of the images that the copy was made with. Loading needs it to make the copy again.

    Examples:
        >>> learned = ads.MixedClassifier(g, h, ads.FineTunedTail.of(h))  # ads.train_mixing trains it
        >>> learned.mix(images).alpha.detach()  # the same for all images before it is trained
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    kind = "fine-tuned-tail"
    title = "fine-tuned tail"
    summary = "a fine-tuned copy of the last stage of the robust classifier, whose logits are averaged in"

    centre: Tensor
    spread: Tensor

    def __init__(self, tail: Tail, tap: str, *, hidden: int = 128, shape: tuple[int, int, int] = (3, 32, 32)) -> None:
        super().__init__()
        self.robust_taps = (tap,)
        self.tail, self.hidden, self.shape = tail, hidden, shape
        classes, features = tail.head.out_features, tail.head.in_features
        self.norm = nn.LayerNorm(features)
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)  # the score starts at zero, so that all images have the same alpha
        nn.init.zeros_(last.bias)
        first, middle = nn.Linear(2 * classes + features, hidden), nn.Linear(hidden, hidden)
        self.scorer = nn.Sequential(first, nn.SiLU(), middle, nn.SiLU(), last)
        self.log_scale = nn.Parameter(torch.zeros(()))
        # Mean and deviation of the scores after training: alpha_scale and alpha_shift act on standardised scores.
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    @classmethod
    def of(
        cls, robust: nn.Module, tap: str | None = None, *, shape: tuple[int, int, int] = (3, 32, 32), hidden: int = 128
    ) -> Self:
        """Return a mixer for this h, with a copy of the layers after `tap`: by default of its last stage."""
        if isinstance(robust, LogitTransform):
            found, hint = type(robust).__name__, "pass the network inside, or use a MixingNetwork"
            raise ValueError(f"expected the network whose last stage is copied, got a {found} of one: {hint}")
        tap = tap or suggest_branch(robust, shape)
        tail = tail_after(robust, tap, shape)
        return cls(tail.requires_grad_(True), tap, shape=shape, hidden=hidden).to(tail.head.weight.device).eval()

    @classmethod
    def restore(cls, robust: nn.Module, options: Mapping[str, Any]) -> Self:
        return cls.of(without_transform(robust), **options)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `of`, without h."""
        return {"tap": self.robust_taps[0], "shape": self.shape, "hidden": self.hidden}

    def forward(self, base_outputs: BaseOutputs) -> MixerOutput:
        score, h = self._raw_score_and_h(base_outputs)
        return MixerOutput((score - self.centre) / self.spread, h * self.log_scale.exp())

    def standardize(self, base_outputs: BaseOutputs) -> None:
        """Set `centre` and `spread`, so that the scores have mean 0 and variance 1 on these images."""
        scores, _ = self._raw_score_and_h(base_outputs)
        self.centre.copy_(scores.mean())
        spread = scores.std(correction=0)
        self.spread.copy_(torch.where(spread > 0, spread, 1.0))

    def _raw_score_and_h(self, base_outputs: BaseOutputs) -> tuple[Tensor, Tensor]:
        """Return the score before it is standardised, and the mean of the logits of h and of the fine-tuned copy."""
        tail_logits, pooled = self.tail(base_outputs.h_features[0])
        h = (base_outputs.h + tail_logits) / 2
        log_h = h.log_softmax(1)
        inputs = [log_h, log_h.sort(1).values, without_autocast(self.norm, pooled)]
        return without_autocast(self.scorer, torch.cat(inputs, dim=1)).squeeze(1), h

    def train(self, mode: bool = True) -> Self:
        """Set the mode, except for the tail, which stays in eval mode with the batch-norm statistics of h."""
        super().train(mode)
        self.tail.eval()
        return self

    def extra_repr(self) -> str:
        return f"tap={self.robust_taps[0]!r}"


class Tail(nn.Module):
    """A chain of layers, a pooling, and the last linear layer."""

    def __init__(self, layers: list[nn.Module], head: nn.Linear, pooling: str) -> None:
        super().__init__()
        self.layers, self.head, self.pooling = nn.ModuleList(layers), head, pooling

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [N, C] and the pooled features [N, F] that the last layer computes them from."""
        for layer in self.layers:
            features = layer(features)
        pooled = POOLINGS[self.pooling](features.to(self.head.weight.dtype))
        return without_autocast(self.head, pooled), pooled


def tail_after(model: nn.Module, layer: str, shape: tuple[int, int, int] = (3, 32, 32)) -> Tail:
    """Return a copy of the part of `model` after `layer`, which has the same logits on random images.

    First the layers are chained in the order in which the model registers them. If the logits differ with every
    pooling, because the model calls functions or has branches, its code is traced.
    """
    find_layer(model, layer)
    if not _layers_after(model, layer):
        hint = "choose an earlier one"
        raise ValueError(f"expected a linear layer in {type(model).__name__} after {layer!r}, got none: {hint}")
    logits, features = dry_run(FeatureTaps(model, [layer]), model, shape, 2)
    for find in (_layers_after, _traced_after):
        layers = find(model, layer)
        for pooling in POOLINGS if layers else ():
            tail = Tail(layers[:-1], cast(nn.Linear, layers[-1]), pooling)
            if _agrees(tail, features[layer], logits):
                return copy.deepcopy(tail)
    raise ValueError(
        f"expected {type(model).__name__} to compute its logits from the output of {layer!r} alone, in a way that can "
        "be traced, got a model that does not: choose a later layer, or a mixing network that needs no tail "
        "(ads.MixingNetwork.between(g, h), or mix --set mixer.kind=network)"
    )


def _layers_after(model: nn.Module, layer: str) -> list[nn.Module]:
    """Return the layers after `layer`, in the order in which the model registers them, up to the last linear one.

    The list is empty if no linear layer follows.
    """
    layers: list[nn.Module] = []
    path = layer.split(".")
    for depth in range(len(path), 0, -1):
        parent = model.get_submodule(".".join(path[: depth - 1]))
        names = [name for name, _ in parent.named_children()]
        layers += [getattr(parent, name) for name in names[names.index(path[depth - 1]) + 1 :]]
    # A container at the end is replaced by its children; other layers after the last linear one are left out.
    while layers and not isinstance(layers[-1], nn.Linear):
        layers += layers.pop().children()
    return layers


def _traced_after(model: nn.Module, layer: str) -> list[nn.Module]:
    """Return a module of the code between `layer` and the last linear layer, and that layer; [] if tracing fails."""

    class Tracer(fx.Tracer):
        def is_leaf_module(self, module: nn.Module, name: str) -> bool:
            return name == layer or super().is_leaf_module(module, name)

    try:
        graph = Tracer().trace(model)
    except Exception:  # a forward can do anything that a tracer cannot follow; try the module inside
        outer, _, rest = layer.partition(".")
        return _traced_after(model.get_submodule(outer), rest) if rest else []
    cut, known, pooled, head = fx.Graph(), {}, None, None
    for node in graph.nodes:
        if node.op == "call_module" and node.target == layer:
            known[node] = cut.placeholder("features")
        elif node.op not in ("placeholder", "output") and all(source in known for source in node.all_input_nodes):
            known[node] = cut.node_copy(node, known.__getitem__)
            if node.op == "call_module" and isinstance(linear := model.get_submodule(node.target), nn.Linear):
                pooled, head = known[node.all_input_nodes[0]], linear
    if pooled is None or head is None:
        return []
    cut.output(pooled)
    traced = fx.GraphModule(model, cut)
    cut.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return [traced, head]


def _agrees(tail: Tail, features: Tensor, logits: Tensor) -> bool:
    """Return whether the tail computes these logits from these features."""
    try:
        with torch.no_grad():
            found, _ = tail(features)
    except (RuntimeError, IndexError, TypeError):  # the shapes do not fit this pooling
        return False
    return found.shape == logits.shape and torch.allclose(found, logits, rtol=1e-3, atol=1e-4)
