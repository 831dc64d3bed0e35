"""Intermediate features of any model, by layer name, from the same forward pass as its logits."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adaptive_smoothing.noise import generator


class FeatureTaps:
    """A function from images to logits and features: `taps(images)` -> `(logits, {"layer1": ..., "layer2": ...})`.

    Names of layers are those of `model.named_modules()`. If all layers are `stages` of the model, its `with_features`
    is called. Otherwise hooks are registered during the call. Inside `attached()` they stay registered, for a compiled
    graph.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str]) -> None:
        if isinstance(layers, str) or not layers or len(set(layers)) != len(layers):
            raise ValueError(f"expected a list of different layer names, got {layers!r}")
        self.model, self.layers = model, tuple(layers)
        self._modules = {name: find_layer(model, name) for name in layers}
        self._has_features = set(layers) <= set(getattr(model, "stages", ())) and hasattr(model, "with_features")
        self._outputs: dict[str, list[Any]] = {}
        self._attached = False

    def __call__(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self._has_features:
            logits, features = self.model.with_features(images)  # type: ignore[operator]
            return logits, {name: features[name] for name in self.layers}
        if self._attached:
            return self._run(images)
        with self.attached():
            return self._run(images)

    @contextmanager
    def attached(self) -> Iterator[FeatureTaps]:
        """Keep the hooks registered: `with taps.attached(): torch.compile(taps)(images)`."""
        if self._attached:
            yield self
            return
        handles = [module.register_forward_hook(self._recorder(name)) for name, module in self._modules.items()]
        self._attached = True
        try:
            yield self
        finally:
            self._attached = False
            for handle in handles:
                handle.remove()

    def _recorder(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, inputs: Any, output: Any) -> None:
            # A copy, because the layer after this one may work in place (ReLU(inplace=True)).
            kept = output.clone() if isinstance(output, Tensor) else output
            self._outputs.setdefault(name, []).append(kept)

        return record

    def _run(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self._outputs = {}
        try:
            logits = self.model(images)
            return logits, {name: self._feature(name) for name in self.layers}
        finally:
            self._outputs = {}  # frees the graph of the batch

    def _feature(self, name: str) -> Tensor:
        outputs = self._outputs.get(name, [])
        if len(outputs) != 1:
            found = f"{len(outputs)} times: tap the layer that calls it"
            if not outputs:
                hint = "if the model was compiled, attach the taps before (FeatureTaps.attached)"
                found = f"never: tap one that the forward pass uses; {hint}"
            raise ValueError(f"expected layer {name!r} to run once in a forward pass, it ran {found}")
        if not isinstance(outputs[0], Tensor):
            found = f"{type(outputs[0]).__name__}: tap a layer inside it"
            raise TypeError(f"expected layer {name!r} to return a tensor, got {found}")
        return outputs[0]


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """Return the submodule called `name`, or raise an error that suggests similar names."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name and name in modules:
        return modules[name]
    names = [known for known in modules if known]
    inside = [known for known in names if known.endswith(f".{name}")]
    nearest = inside or difflib.get_close_matches(name, names, n=3) or names[:5]
    hint = f"did you mean {', '.join(map(repr, nearest[:3]))}? list(dict(model.named_modules())) lists all names"
    raise ValueError(f"expected the name of a layer of {type(model).__name__}, got {name!r}: {hint}")


def suggest_taps(model: nn.Module, shape: tuple[int, int, int] = (3, 32, 32), count: int = 2) -> list[str]:
    """Return the names of `count` early layers at successive resolutions.

    These are the ends of the first stages of a convolutional network, or evenly spaced blocks in the first half of a
    network that keeps its resolution, such as a transformer.
    """
    families = _families(_outputs(model, shape))
    for ends in _stage_ends(families):
        if len(ends) >= count:
            return ends[:count]
    row = _longest_row(families, count)
    # Half of a row of blocks is deep enough; half of a few plain convolutions is not.
    span = max(count, (len(row) + 1) // 2) if row[0].is_block else len(row)
    return [row[span * (number + 1) // count - 1].name for number in range(count)]


def suggest_branch(model: nn.Module, shape: tuple[int, int, int] = (3, 32, 32)) -> str:
    """Return the layer after which a tail starts: the end of the last stage but one.

    In a network without stages, it is the layer at three quarters of the depth.
    """
    families = _families(_outputs(model, shape))
    if ends := next((ends for ends in _stage_ends(families) if len(ends) >= 2), None):
        return ends[-2]
    row = _longest_row(families, 2)
    return row[max(1, 3 * len(row) // 4) - 1].name


class _Output(NamedTuple):
    """The output of one layer in a dry run. A block is a layer with more than one convolution or linear map."""

    name: str
    resolution: int
    is_block: bool


def _stage_ends(families: list[list[_Output]]) -> tuple[list[str], list[str]]:
    """Return the last block at each resolution, and the last layer of any kind at each resolution."""
    trunk = max(families, key=lambda family: len({output.resolution for output in family}), default=[])
    stages = [list(group) for _, group in groupby(trunk, lambda output: output.resolution)]
    # A stem has no blocks, and its features are little more than the image.
    blocks = [[output for output in stage if output.is_block] for stage in stages]
    return [stage[-1].name for stage in blocks if stage], [stage[-1].name for stage in stages]


def _families(outputs: list[_Output]) -> list[list[_Output]]:
    """Return lists of sibling layers, one for each parent that holds at least half of the network.

    Smaller parents are blocks.
    """
    families: dict[str, list[_Output]] = {}
    for output in outputs:
        families.setdefault(output.name.rpartition(".")[0], []).append(output)
    inside = {parent: sum(o.name.startswith(f"{parent}.") for o in outputs) for parent in families}
    return [family for parent, family in families.items() if not parent or 2 * inside[parent] >= len(outputs)]


def _longest_row(families: list[list[_Output]], count: int) -> list[_Output]:
    """Return the largest family of blocks, or of layers of any kind if no family has `count` blocks."""
    blocks = [[output for output in family if output.is_block] for family in families]
    largest = [max(kind, key=len, default=[]) for kind in (blocks, families)]
    chosen = next((family for family in largest if len(family) >= count), None)
    if chosen is None:
        found = f"{[output.name for output in largest[-1]]}: name the layers yourself, or request fewer"
        raise ValueError(f"expected a model with at least {count} layers to tap, found {found}")
    return chosen


def dry_run(run: Callable[[Tensor], Any], model: nn.Module, shape: tuple[int, int, int], count: int = 1) -> Any:
    """Return `run(images)` for random images of `shape`, or raise an error if `model` does not accept them."""
    images = torch.rand(count, *shape, generator=generator(0, "probe", *shape))
    weight = next(model.parameters(), images)
    try:
        with torch.no_grad():
            return run(images.to(weight.device, weight.dtype))
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        hint = f"got an error ({why}): pass shape=(channels, height, width) of images that it accepts"
        size = " x ".join(map(str, shape))
        raise ValueError(f"expected {type(model).__name__} to accept images of {size}, {hint}") from error


def _outputs(model: nn.Module, shape: tuple[int, int, int]) -> list[_Output]:
    """Return the layers that run once and return a feature map or tokens, in the order in which they finish."""
    finished: list[tuple[str, list[nn.Parameter], Any]] = []
    handles = [
        module.register_forward_hook(lambda m, _, out, name=name: finished.append((name, list(m.parameters()), out)))
        for name, module in model.named_modules()
        if name
    ]
    modes = {module: module.training for module in model.modules()}
    try:
        dry_run(model.eval(), model, shape)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    runs = Counter(name for name, _, _ in finished)
    # Layers before the first weights resize and normalise.
    return [
        _Output(name, resolution, sum(weight.dim() >= 2 for weight in weights) > 1)
        for name, weights, output in dropwhile(lambda layer: not layer[1], finished)
        if runs[name] == 1 and (resolution := _resolution(output)) > 1
    ]


def as_map(features: Tensor) -> Tensor:
    """Return features as (N, C, H, W): tokens as a square without the class token, vectors as one pixel."""
    if features.dim() == 2:
        return features[:, :, None, None]
    if features.dim() == 3:
        side = math.isqrt(features.shape[1])
        return features[:, features.shape[1] - side**2 :].transpose(1, 2).unflatten(2, (side, side))
    return features.permute(0, 3, 1, 2) if _channels_last(features) else features


def _channels_last(features: Tensor) -> bool:
    return features.shape[1] == features.shape[2] != features.shape[3]


def _resolution(output: Any) -> int:
    """Return the number of pixels of a feature map (N, C, H, W) or (N, H, W, C), or of tokens (N, T, C); else 0."""
    if not isinstance(output, Tensor) or output.dim() not in (3, 4):
        return 0
    if output.dim() == 3:  # the largest square: a class token does not change the resolution
        return math.isqrt(output.shape[1]) ** 2
    return math.prod(output.shape[1:3] if _channels_last(output) else output.shape[2:])
