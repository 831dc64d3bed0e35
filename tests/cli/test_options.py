"""Options that verbs share: devices, targets, and how many a verb shows."""

import ast
from pathlib import Path

import pytest

from adaptive_smoothing.cli import options
from adaptive_smoothing.cli.main import VERBS, load
from adaptive_smoothing.cli.options import as_share

CLI = Path(options.__file__).parent


@pytest.mark.parametrize("name", ["cuda", "cuda:7", "gpu"])
def test_a_device_that_this_machine_lacks_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "devices", lambda: ["cpu"])
    with pytest.raises(ValueError, match=rf"of this machine \(cpu\) or auto, got '{name}'"):
        options.pick_device(name)
    assert options.pick_device("auto") == options.pick_device("cpu") == "cpu"


def test_a_gpu_is_preferred_and_several_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(options.torch.cuda, "device_count", lambda: 2)
    assert options.devices()[:4] == ["cpu", "cuda", "cuda:0", "cuda:1"]
    assert options.pick_device("auto") == "cuda"
    assert options.pick_devices("cuda:0,cuda:1") == ["cuda:0", "cuda:1"]


def test_an_accuracy_is_a_share_or_in_percent() -> None:
    assert as_share(0.9) == as_share(90) == 0.9 and as_share(1) == 1
    for wrong in (0, 2, 10, 250, -0.5):
        with pytest.raises(ValueError, match=rf"such as 0.9, or 90 in percent, got {wrong:g}"):
            as_share(wrong)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_shows_few_options_each_with_one_sentence(verb: str) -> None:
    shown = [parameter for parameter in load(verb).params if parameter.param_type_name == "option"]
    shown = [option for option in shown if option.name != "help"]
    own = [option for option in shown if option.rich_help_panel is None]  # a panel has options that several verbs share
    assert len(own) <= (16 if verb in ("certify", "evaluate") else 15)
    for option in shown:
        assert option.help and option.help.endswith((".", "...")), option.name


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_do_not_import_verbs(verb: str) -> None:
    tree = ast.parse((CLI / f"{verb}.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {f"adaptive_smoothing.cli.{other}" for other in VERBS}
