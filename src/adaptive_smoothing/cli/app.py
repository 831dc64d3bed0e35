"""`adaptive-smoothing app MODEL`: attack an image in a browser, and move alpha."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from adaptive_smoothing.app.server import Server, free_port, require_gradio
from adaptive_smoothing.app.subject import Subject
from adaptive_smoothing.cli import options as opt
from adaptive_smoothing.cli.console import screen
from adaptive_smoothing.cli.shared import print_result
from adaptive_smoothing.data import datasets
from adaptive_smoothing.mixing.loading import LoadedModel

MIXTURE = "compact-mixed"


def app(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL | G]", help="A name from `models`, or a path; G of a mixture G H.")
    ] = MIXTURE,
    robust: Annotated[str | None, typer.Argument(metavar="H", help="The robust model of a mixture G H.")] = None,
    alpha: Annotated[
        float | None, typer.Option(min=0, max=1, help="Weight of H in a mixture G H, at the start.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port on this machine; by default a free one from 7860.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    data: Annotated[
        str | None, typer.Option(help="Images to choose from: as for `evaluate`. Default: the built-in test images.")
    ] = None,
    data_root: opt.DataRoot = None,
    download: opt.Download = False,
    split: opt.Split = "test",
    device: opt.Device = "auto",
    loader: opt.Loader = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    size: opt.Size = None,
) -> None:
    """Attack an image in a browser, step by step, and move alpha; the page stays on this machine."""
    require_gradio()
    free_port(port)  # before a model is loaded, which may take long
    where, console = opt.pick_device(device), screen()
    loaded = LoadedModel.load(model, robust, alpha, where, opt.own_models(loader, mean, std, size))
    chosen = data and datasets.load(data, split, root=data_root, download=download)
    with Server(Subject.of(loaded, where, chosen or None), port) as server:
        console.print(f"Open {server.url} in a browser. Ctrl-C ends the application.", markup=False, soft_wrap=True)
        print_result({"url": server.url, "model": loaded.short})
        if open_browser:
            webbrowser.open(server.url)
        try:
            server.wait()
        except KeyboardInterrupt:
            console.print("Ended.")
