"""How to build a model again, as plain data, for models whose weights are stored in full.

A description is one of these:

- `{"arch": ..., "options": {...}}`: an architecture of this package.
- `{"library": "timm:NAME?options"}`: a network of another library, built without its weights. A network of
  transformers also has its `config`.
- `{"function": "module:function", "arguments": [...]}`: a function of the user. The name is a hint: it is imported only
  if the user allows exactly this name.
- `{"wrap": {...}, "of": DESCRIPTION}`: the options of `ads.wrap`, around one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from adaptive_smoothing.models import third_party
from adaptive_smoothing.models.architectures import build
from adaptive_smoothing.models.contract import freeze
from adaptive_smoothing.models.digest import all_tensors
from adaptive_smoothing.models.origin import Origin, origin
from adaptive_smoothing.models.resnet import Normalize
from adaptive_smoothing.models.wrap import Classifier, Resize, first_layers
from adaptive_smoothing.settings.user_code import check_parameters, import_function

# A function that returns a network, `module:function`, or the name of a network of another library.
Builder = Callable[..., nn.Module] | str


def describe(model: nn.Module, builder: Builder | None = None, found: Origin | None = None) -> dict[str, Any]:
    """Return how to build a model again.

    Args:
        builder: how to build the network, without what `ads.wrap` added; by default it follows from the model's name.
        found: where the model was found.
    """
    found = origin(model) or found
    if found and "build" in found and builder is None:
        return found["build"]
    if isinstance(model, Classifier):
        return {"wrap": _wrap_options(model), "of": describe(model.model, builder, found)}
    if builder is not None:
        return _describe_builder(builder)
    if found and "arch" in found:
        return {"arch": found["arch"], "options": found["options"]}
    if found and "loader" in found:
        return {"function": found["loader"], "arguments": [found["name"]]}
    if found and third_party.split(found["name"]):
        config = {"config": _plain_config(model)} if found["name"].startswith("hf:") else {}
        return {"library": third_party.without_weights(found["name"]), **config}
    hint = 'pass builders={"standard": make_g}, a function (or its name, "my_models:make_g") that returns the network'
    raise ValueError(
        f"expected to know how to build a {type(model).__name__} again, got a module without a name: {hint}"
    )


def construct(
    description: Mapping[str, Any], function: Callable[..., Any] | None = None, allow: frozenset[str] = frozenset()
) -> nn.Module:
    """Return the described model with random weights, in eval mode.

    Args:
        function: the function that builds the network, if that is described as a function.
        allow: names `module:function` that may be imported.
    """
    if "wrap" in description:
        return _wrapped(construct(description["of"], function, allow), description["wrap"])
    if "function" in description:
        return _call(function or _allowed(description["function"], allow), description)
    try:
        return freeze(_network(description))
    except (TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
        name, found = description.get("arch") or description["library"], f"{type(error).__name__}: {error}"
        hint = "the file was damaged or written by hand, or the library has changed; save_pretrained writes it"
        raise ValueError(f"expected options in the file that build {name}, got {found}: {hint}") from error


def _network(description: Mapping[str, Any]) -> nn.Module:
    """Return the described network of this package or of another library."""
    if "arch" in description:
        return build(description["arch"], **description["options"])
    if (found := third_party.split(description["library"])) is None:
        known = ", ".join(third_party.SOURCES)
        raise ValueError(f"expected a network of one of {known}, got {description['library']!r} in the file")
    library, text = found
    return third_party.untrained(library, text, description.get("config"))


def set_tensors(
    model: nn.Module, tensors: Mapping[str, Tensor], hint: str = "build the network that was saved"
) -> None:
    """Replace all parameters and buffers of a model, with the dtype of the new ones; `hint` is for an error."""
    mine = all_tensors(model)
    for name in sorted(mine.keys() | tensors.keys()):
        found, expected = (_shape_text(each.get(name), name) for each in (mine, tensors))
        if found != expected:
            raise ValueError(f"expected a network {expected}, got one {found}: {hint}")
    for name, tensor in mine.items():
        tensor.data = tensors[name].detach().cpu()


def _shape_text(tensor: Tensor | None, name: str) -> str:
    return f"without {name}" if tensor is None else f"with {name} of shape {tuple(tensor.shape)}"


def _describe_builder(builder: Builder) -> dict[str, Any]:
    if isinstance(builder, str) and third_party.split(builder):
        return {"library": builder}
    return {"function": _function_name(builder), "arguments": []}


def _function_name(builder: Builder) -> str:
    """Return `module:function`. Of an object that has no name, such as a partial, the name cannot be imported."""
    if isinstance(builder, str):
        return builder
    if isinstance(builder, nn.Module) or not callable(builder):
        hint = "pass a function that returns the network, for example lambda: Network(10)"
        raise TypeError(f"expected a builder as a function or module:function, got {type(builder).__name__}: {hint}")
    return f"{builder.__module__}:{getattr(builder, '__qualname__', f'<{type(builder).__qualname__}>')}"


def _plain_config(model: nn.Module) -> dict[str, Any]:
    """Return the configuration of a network of transformers, without references to code."""
    config = model.config.to_dict()  # type: ignore[operator, union-attr]
    return {key: value for key, value in config.items() if key != "auto_map"}


def _wrap_options(model: Classifier) -> dict[str, Any]:
    """Return what `ads.wrap` added to a network."""
    if callable(model.output):
        hint = "pass the name of a field to ads.wrap, or let the network return logits"
        raise ValueError(
            f"expected output= of ads.wrap as a name or an index, got a function, which no file holds: {hint}"
        )
    found: dict[str, Any] = {"output": model.output, "num_classes": model.num_classes, "shape": list(model.shape)}
    for layer in model.first.children():
        if isinstance(layer, Resize):
            found["size"] = list(layer.size)
        elif isinstance(layer, Normalize):
            found |= {"mean": layer.mean.flatten().tolist(), "std": layer.std.flatten().tolist()}
        else:
            raise ValueError(
                f"expected first layers made by ads.wrap, got a {type(layer).__name__}: put it into a module"
            )
    return found


def _wrapped(model: nn.Module, options: Mapping[str, Any]) -> Classifier:
    shape = tuple(options["shape"])
    first = first_layers(options.get("mean"), options.get("std"), options.get("size"), shape[0])
    classes, output = options["num_classes"], options["output"]
    return freeze(Classifier(model, first=first, num_classes=classes, output=output, shape=shape))


def allowed_names(allow: Collection[str] | str) -> frozenset[str]:
    """Return the names `module:function` that a user allows. A string is one name."""
    names = [allow] if isinstance(allow, str) else allow
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        hint = 'name each function, for example allow=["my_models:make_g"]'
        raise TypeError(f"expected allow as names module:function, got {allow!r}: {hint}")
    return frozenset(names)


def _allowed(name: str, allow: frozenset[str]) -> Callable[..., Any]:
    """Import a function that a file names, if the user allows it."""
    if name not in allow:
        hint = "pass the function itself (standard=, robust=; to save: builders=)"
        if "<" not in name:  # a lambda, a partial or a function inside another one cannot be imported
            hint += f" or allow=[{name!r}]; on the command line --loader {name}, with a comma between several"
        raise ValueError(f"expected the function {name}, which is not imported because a file names it: {hint}")
    return import_function(name, "the function that builds the network")


def _call(function: Callable[..., Any], description: Mapping[str, Any]) -> nn.Module:
    """Return the network that a function of the user builds, without what `ads.wrap` added."""
    name, arguments = description["function"], description["arguments"]
    check_parameters(function, [*map(repr, arguments)], name, "the network")
    model = function(*arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a network from {name}, got {type(model).__name__}: return a torch.nn.Module")
    while isinstance(model, Classifier):
        model = model.model
    return freeze(model)
