"""Mixed classifiers in repositories of the Hugging Face hub: upload a folder of `save_pretrained`, and fetch one.

A repository holds the files of the folder, with `README.md` (the card, and the facts that the hub reads) in the place
of `mixture.md`. Only JSON and safetensors are fetched. A repository may name models of the package, of the zoo and of
libraries, but no file of this machine and no model that is stored as a pickle.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptive_smoothing.mixing import pretrained
from adaptive_smoothing.models import third_party, zoo
from adaptive_smoothing.models.cards import base_description
from adaptive_smoothing.models.download import first_line

CARD = "README.md"
FETCHED = ("*.json", "*.safetensors")
# Libraries whose models a repository may name: they load safetensors, or tensors alone.
LIBRARIES = ("timm", "torchvision", "hf")
TAGS = ["adversarial-robustness", "mixture-of-classifiers", "pytorch"]
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
REVISION = re.compile(r"[\w./-]+")
# Marks the name of a repository that could also be a path.
SCHEME = "hf://"
# The folder that commands write to. It may not exist yet where a user types its name.
RUNS = "runs"
# The figures of a card that are accuracies, with their names on the hub.
ACCURACIES = {"clean": "Clean accuracy", "adaptive": "Accuracy under the attacks of the preset adaptive"}


def find_repository(name: Path | str) -> str | None:
    """Return the repository `org/name` that a name stands for, or None for a path and for a name without a slash.

    `hf://org/name` is always a repository, and may have a revision: `hf://org/name@v1`. `org/name` is a path if there
    is a folder `org` here, if `org` is the folder that commands write to, or if it ends like a file of weights.
    """
    if not isinstance(name, str):
        return None
    marked, repository = name.startswith(SCHEME), name.removeprefix(SCHEME)
    repository, at, revision = repository.partition("@")
    if not REPOSITORY.fullmatch(repository) or (at and not (marked and REVISION.fullmatch(revision))):
        if marked:
            raise ValueError(f"expected {SCHEME}ORG/NAME or {SCHEME}ORG/NAME@REVISION, got {name!r}: correct the name")
        return None
    if at:
        return f"{repository}@{revision}"
    folder = Path(repository).parent
    is_path = folder.exists() or folder == Path(RUNS) or Path(repository).suffix in zoo.WEIGHT_FILES
    return repository if marked or not is_path else None


def push(
    folder: Path, repository: str, *, license: str | None, private: bool | None, token: str | None, revision: str | None
) -> str:
    """Upload a folder that `pretrained.save` wrote to a repository, which is created if needed. Returns its address."""
    import huggingface_hub

    if not REPOSITORY.fullmatch(repository):
        raise ValueError(f"expected a repository such as org/name, got {repository!r}: name the account and the model")
    text = (folder / pretrained.FILE).with_suffix(".md")
    facts = header(pretrained.read(folder), folder.name, license)
    (folder / CARD).write_text(f"---\n{facts}\n---\n\n{usage(repository, text.read_text())}", encoding="utf-8")
    text.unlink()
    client = huggingface_hub.HfApi(token=token)
    try:
        address = client.create_repo(repository, private=private, exist_ok=True)
        if revision:
            client.create_branch(repository, branch=revision, exist_ok=True)
        client.upload_folder(
            repo_id=repository, folder_path=folder, revision=revision, commit_message=f"Add the mixture {folder.name}"
        )
    except Exception as error:  # the errors of its HTTP client have no common class that is public
        hint = "check the name, the connection, and that `hf auth login` or token= gives you the right to write"
        raise OSError(f"expected to upload to {repository}, got: {first_line(error)}: {hint}") from error
    return str(address)


def fetch(
    repository: str, *, passed: Collection[str] = (), revision: str | None = None, token: str | None = None
) -> Path:
    """Return the local folder of a mixture in a repository. Its files are fetched once.

    Args:
        repository: `org/name` or `org/name@revision`.
        passed: the roles of base classifiers that the user passes, and that are not loaded by name.
    """
    import huggingface_hub

    repository, _, named = repository.partition("@")
    if named and revision and named != revision:
        raise ValueError(f"expected one revision of {repository}, got {named} and {revision}: leave one out")
    revision = named or revision
    try:
        found = huggingface_hub.snapshot_download(
            repository, revision=revision, token=token, allow_patterns=list(FETCHED)
        )
    except Exception as error:  # see push
        expected = f"a mixture: a folder {repository!r} here, or a repository of that name on the hub"
        hint = "check the name, the revision and the connection, or pass token= for a private one"
        raise FileNotFoundError(f"expected {expected}, got neither ({first_line(error)}): {hint}") from error
    folder = Path(found)
    if not (folder / pretrained.FILE).is_file():
        hint = "MixedClassifier.push_to_hub writes one; for a single model use ads.load_model('hf:ORG/NAME')"
        raise FileNotFoundError(f"expected {pretrained.FILE} in the repository {repository}, got none: {hint}")
    description = pretrained.read(folder)
    for role in pretrained.ROLES:
        if role not in passed:
            check_base(repository, role, description.get(role, {}))
    return folder


def check_base(repository: str, role: str, description: Mapping[str, Any]) -> None:
    """Raise an error if a file that others wrote describes a base classifier that is not safe to load."""
    base = base_description(description)
    hint = f"if you trust it, load it yourself and pass {role}=..."
    if "held" in base and not re.fullmatch(r"[\w.-]+\.safetensors", str(base["held"])):
        expected = f"the {role} classifier of {repository} as safetensors in the repository"
        raise ValueError(f"expected {expected}, got {base['held']!r}: {hint}")
    if "name" in base and not _is_safe_name(str(base["name"])):
        expected = f"a model of the package, of the zoo, or of {', '.join(LIBRARIES)}"
        raise ValueError(f"expected {expected} as the {role} classifier of {repository}, got {base['name']!r}: {hint}")


def _is_safe_name(name: str) -> bool:
    """Return whether a name is of the zoo or of a library, and neither it nor its options name a file or a folder."""
    if (found := third_party.split(name)) is None:
        return re.fullmatch(r"[\w-]+", name) is not None  # a name in the zoo has no dot or slash
    library, text = found
    model, options = third_party.SOURCES[library].parse(text)
    is_local = model.startswith(("local-dir:", "/", ".", "~")) or "\\" in model or bool(options.get("checkpoint"))
    return library in LIBRARIES and not is_local


def header(description: Mapping[str, Any], name: str, license: str | None) -> str:
    """Return the facts that the hub reads from the top of a card, as YAML."""
    from huggingface_hub import ModelCardData

    results = list(_results(description["card"]))
    facts = ModelCardData(
        license=license or description["card"].get("license"),
        library_name="adaptive-smoothing",
        pipeline_tag="image-classification",
        tags=TAGS,
        metrics=["accuracy"] if results else None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    return facts.to_yaml()


def _results(card: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the accuracies on test images, if the card has them and names the data."""
    from huggingface_hub import EvalResult

    data = card.get("recipe", {}).get("data", {}).get("name")
    figures = card.get("figures", {}).get("test", {})
    for key, title in ACCURACIES.items() if data else ():
        if isinstance(share := figures.get(key), float):
            yield EvalResult(
                task_type="image-classification",
                dataset_type=data,
                dataset_name=data,
                dataset_split="test",
                metric_type="accuracy",
                metric_name=title,
                metric_value=share,
            )


def usage(repository: str, text: str) -> str:
    """Return a card with the lines of code that load the mixture."""
    code = f'import adaptive_smoothing as ads\n\nmixed = ads.MixedClassifier.from_pretrained("{repository}")'
    return f"{text}\n```python\n{code}\nlogits = mixed(images)  # NCHW images in [0, 1]\n```\n"
