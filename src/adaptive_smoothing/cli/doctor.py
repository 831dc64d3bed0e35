"""`adaptive-smoothing doctor`: check the installation and the machine, and say what to do."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import typer

from adaptive_smoothing.attacks.engine.arithmetic import DEFAULT_FLOAT32, fast_arithmetics
from adaptive_smoothing.cli.console import screen
from adaptive_smoothing.cli.options import devices, pick_device
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.data.datasets import data_folder
from adaptive_smoothing.mixing.classifier import MixedClassifier
from adaptive_smoothing.models import download, zoo
from adaptive_smoothing.models.cards import read_manifest
from adaptive_smoothing.version import CACHE_VARIABLE, VERSION, cache_folder

# Optional packages with the extra that installs them, and what needs them.
OPTIONAL = {
    "timm": ("timm", "models named timm:NAME"),
    "torchvision": ("torchvision", "models named torchvision:NAME"),
    "transformers": ("hf", "models named hf:NAME"),
    "robustbench": ("robustbench", "models named robustbench:NAME"),
    "datasets": ("datasets", "data named hf:NAME"),
    "onnxscript": ("export", "ONNX files"),
    "onnxruntime": ("export", "ONNX files"),
    "tensorboard": ("train", "curves of a training"),
    "gradio": ("app", "the application in a browser"),
}
# The packages whose models import torchvision, if it is installed. It is compiled for one version of torch, and fails
# with others. To import the packages themselves would take long.
TORCHVISION = "torchvision"
IMPORT_TORCHVISION = (TORCHVISION, "timm", "transformers", "robustbench")
# Gibibytes of memory below which the default batches may not fit, and of disk below which a run may not.
LITTLE_MEMORY, LITTLE_DISK = 4.0, 1.0
STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@dataclass(frozen=True)
class Check:
    """One fact about the installation. The state is `ok`, `note` or `problem`; the last two come with advice."""

    name: str
    found: str
    state: str = "ok"
    advice: str = ""


def doctor() -> None:
    """Check this installation: versions, devices, memory, folders, optional packages, and what to do."""
    console, found = screen(), list(checks())
    for check in found:
        console.print(f"[{STYLES[check.state]}]{check.state:8}[/]", end="")
        advice = f": {check.advice}" if check.advice else ""
        console.print(f"{check.name:16} {check.found}{advice}", markup=False, soft_wrap=True)
    problems = sum(check.state == "problem" for check in found)
    print_result({"ok": not problems, "checks": [asdict(check) for check in found]})
    if problems:
        raise typer.Exit(1)


def checks() -> Iterator[Check]:
    """Yield all checks."""
    yield Check("package", f"adaptive-smoothing {VERSION} in {Path(zoo.__file__).parents[1]}")
    yield Check("python", f"{platform.python_version()} ({sys.executable}), {platform.system()} {platform.machine()}")
    yield from _devices()
    yield _memory()
    yield _arithmetic()
    yield _models()
    yield _zoo()
    yield _folder("cache", cache_folder(), f"set {CACHE_VARIABLE} to a folder that you may write to")
    yield _folder("data folder", data_folder(), "set ADAPTIVE_SMOOTHING_DATA, or pass --data-root")
    yield _folder("output folder", Path("runs").resolve(), "pass --out with a folder that you may write to")
    for package, (extra, purpose) in OPTIONAL.items():
        yield _optional(package, extra, purpose)


def _devices() -> Iterator[Check]:
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a build for CPUs"
    if torch.version.cuda and not torch.cuda.is_available():
        yield Check("torch", f"{torch.__version__}, {build}, no GPU found", "note", "check the driver with nvidia-smi")
    else:
        yield Check("torch", f"{torch.__version__}, {build}")
    yield Check("devices", f"{', '.join(devices())}; --device auto is {pick_device('auto')}")
    for number in range(torch.cuda.device_count()):
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(number))
        found = f"{torch.cuda.get_device_name(number)}, {free:.1f} of {total:.1f} GiB free"
        busy = ("note", "another process uses it; choose another --device") if free < total / 2 else ()
        yield Check(f"cuda:{number}", found, *busy)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    few = ("note", "unset OMP_NUM_THREADS to use all cores") if threads < cores else ()
    yield Check("cores", f"{cores}, of which torch uses {threads}", *few)


def _memory() -> Check:
    try:
        pages = {
            name: os.sysconf(f"SC_{name}_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30 for name in ("PHYS", "AVPHYS")
        }
    except (ValueError, OSError, AttributeError):  # not on this platform
        return Check("memory", "unknown")
    found = f"{pages['AVPHYS']:.1f} of {pages['PHYS']:.1f} GiB free"
    if pages["PHYS"] < LITTLE_MEMORY:
        return Check("memory", found, "note", "use smaller batches: --set batch_size=50")
    return Check("memory", found)


def _arithmetic() -> Check:
    """Report the arithmetic that attacks try first on the default device."""
    device = torch.device(pick_device("auto"))
    names = [each.name for each in fast_arithmetics(device) if each.name != DEFAULT_FLOAT32.name]
    faster = f"{' or '.join(names)} where it is accurate, else float32" if names else "float32"
    return Check("arithmetic", f"attacks on {device.type} use {faster}")


def _models() -> Check:
    """Load the models and mixtures of the package, which compares their sha256 with the manifest."""
    bases = sorted(read_manifest(zoo.BUILTIN))
    mixtures = sorted(path.parent.name for path in zoo.BUILTIN.glob(f"*/{zoo.MIXTURE}"))
    try:
        for name in bases:
            zoo.load(name)
        for name in mixtures:
            MixedClassifier.from_pretrained(name)
    except (ValueError, OSError, RuntimeError) as error:
        return Check("package models", str(error), "problem", "the package is damaged; install it again")
    return Check("package models", ", ".join(bases + mixtures))


def _zoo() -> Check:
    try:
        folder, url = zoo.zoo_folder(), download.zoo_url()
    except (FileNotFoundError, ValueError) as error:
        return Check("zoo", str(error), "problem")  # the error says what to do
    if folder is None and url is None:
        hint = f"for its models, set {zoo.ZOO_VARIABLE} to the zoo/ folder of a checkout, or {download.URL_VARIABLE}"
        return Check("zoo", "not on this machine", "note", hint)
    return Check("zoo", str(folder or f"fetched from {url}, which was not tried"))


def _folder(name: str, folder: Path, advice: str) -> Check:
    """Report whether a folder, or the nearest folder above it that exists, can be written to."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        return Check(name, f"{folder} cannot be written to", "problem", advice)
    free = shutil.disk_usage(existing).free / 2**30
    new = "" if existing == folder else " (will be made)"
    full = ("note", "free some space") if free < LITTLE_DISK else ()
    return Check(name, f"{folder}{new}, {free:.1f} GiB free", *full)


def _optional(package: str, extra: str, purpose: str) -> Check:
    """Report the version of an optional package, and whether it fails because torchvision does."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        install = f"for {purpose}, run pip install 'adaptive-smoothing[{extra}]'"
        return Check(package, "not installed", "note", install)
    try:
        if package in IMPORT_TORCHVISION and importlib.util.find_spec(TORCHVISION):
            importlib.import_module(TORCHVISION)
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if package == TORCHVISION else f"it imports {TORCHVISION}, which fails"
        advice = "install torch and torchvision together again"
        return Check(package, f"{version}, cannot be imported ({reason})", "problem", advice)
    return Check(package, version)
