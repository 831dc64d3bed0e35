"""Save, load, upload and export: the methods of a mixture that have to do with files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch
from torch import nn

from adaptive_smoothing.mixing import hub, pretrained
from adaptive_smoothing.mixing.base_classifiers import BaseClassifiers
from adaptive_smoothing.mixing.export import Exported
from adaptive_smoothing.mixing.export import export as export_graph
from adaptive_smoothing.mixing.stored_base import Given
from adaptive_smoothing.models.construction import Builder
from adaptive_smoothing.settings.checks import check_path


class StorableMixture(BaseClassifiers):
    """Two base classifiers that are stored together with the numbers, or the mixer, that mix them.

    `card` holds facts about a mixture that was loaded, such as its recipe and figures.
    """

    def __init__(self, standard: nn.Module, robust: nn.Module) -> None:
        super().__init__(standard, robust)
        self.card: dict[str, Any] = {}

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""

    def save_pretrained(
        self,
        folder: Path | str,
        *,
        hold: bool = False,
        builders: Mapping[str, Builder] | None = None,
        card: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the mixture to a folder, which is returned.

        Args:
            hold: write all weights in full precision, also those of the base classifiers. Otherwise the folder has
                their names and digests, and a mixer in half precision.
            builders: with hold, how to build the network of a base classifier again, if that does not follow from its
                name: a function without arguments, its name `module:function`, or a name such as
                `timm:resnet18?num_classes=7`. Keys are `standard` and `robust`.
            card: facts to store, such as recipe and figures; by default those that this mixture was loaded with.
        """
        check_path(folder=folder)
        facts = self.card if card is None else card
        return pretrained.save(self._arguments(), folder, card=facts, hold=hold, builders=builders or {})

    def push_to_hub(
        self,
        repository: str,
        *,
        hold: bool = True,
        builders: Mapping[str, Builder] | None = None,
        card: Mapping[str, Any] | None = None,
        license: str | None = None,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
    ) -> str:
        """Upload the mixture to a repository of the Hugging Face hub, `org/name`, and return its address.

        Args:
            hold, builders, card: see `save_pretrained`.
            license: the licence of the weights, such as "mit", for the card.
            private: whether a new repository is private.
            token: of the hub, with the right to write; by default that of `hf auth login`.
            revision: a branch, which is created if needed.
        """
        with TemporaryDirectory() as place:
            name = Path(repository).name
            folder = self.save_pretrained(Path(place) / name, hold=hold, builders=builders, card=card)
            return hub.push(folder, repository, license=license, private=private, token=token, revision=revision)

    def export(
        self,
        path: Path | str,
        *,
        shape: tuple[int, int, int] | None = None,
        format: str | None = None,
        overwrite: bool = False,
    ) -> Exported:
        """Write the mixture as a graph, `.onnx` or `.pt2`, that runs without this library; see `mixing.export`.

        Alpha, or for a learned alpha `alpha_shift`, stays an input of the graph. An existing file is replaced with
        `overwrite` only.
        """
        return export_graph(self, path, shape=shape, format=format, overwrite=overwrite)

    @classmethod
    def from_pretrained(
        cls,
        folder: Path | str,
        *,
        standard: Given | str | None = None,
        robust: Given | str | None = None,
        allow: Collection[str] | str = (),
        device: torch.device | str = "cpu",
        revision: str | None = None,
        token: str | None = None,
    ) -> Self:
        """Return a stored mixture: of a folder, of the package or the zoo by name, or of the hub as `org/name`.

        If there is a folder `org` here, write `hf://org/name`, or `hf://org/name@v1` for a revision. An error explains
        how a base classifier has changed.

        Args:
            standard, robust: base classifiers that the folder does not name, such as your own modules. If the folder
                holds the weights of one, a function that builds its network, or its name `module:function`, is
                sufficient.
            allow: names `module:function` of your own functions, which are imported if the folder names them.
            revision: a branch, a tag or a commit of a repository of the hub.
            token: of the hub, for private repositories; by default that of `hf auth login`.
        """
        check_path(folder=folder)
        given = {"standard": standard, "robust": robust}
        if repository := hub.find_repository(folder):
            passed = [role for role, model in given.items() if model is not None]
            folder = hub.fetch(repository, passed=passed, revision=revision, token=token)
        arguments, card = pretrained.load(folder, given, device, allow)
        mixed = cls(**arguments).to(device)
        mixed.card = card
        return mixed
