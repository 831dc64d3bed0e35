"""Stored runs are read as they were written. `stored/` has examples of schema 1, `results/` has runs of schema 0.

The examples are never written again: a reader must keep reading them.
"""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import adaptive_smoothing as ads
from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.evaluation.radii import RadiusCurve
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report.load import load_run
from adaptive_smoothing.results import read_json, read_rows

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parent / "stored"
VERDICTS = [STORED / "evaluation-mixture", STORED / "evaluation-model", *sorted((ROOT / "results/verdicts").iterdir())]
CERTIFIED = [
    STORED / "certification",
    *sorted(path.parent for path in (ROOT / "results").glob("certified/*/*/rows.npz")),
]
# Keys of result.json that are not part of the summary, and those that files of schema 0 lack.
OUTSIDE, NEW = ("schema", "kind", "models"), ("attack", "calibration")


def name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


@pytest.mark.parametrize("folder", VERDICTS, ids=name)
def test_a_verdict_has_the_summary_and_the_rows_that_were_stored(folder):
    verdict, stored = load_run(folder), read_json(folder / "result.json")
    assert isinstance(verdict, Verdict)
    expected = {key: value for key, value in stored.items() if key not in OUTSIDE}
    summary = json.loads(json.dumps(verdict.summary()))
    assert {key: summary[key] for key in expected} == expected
    assert summary.keys() - expected.keys() == set(() if "schema" in stored else NEW)
    rows, columns = verdict.rows(), read_rows(folder / "rows.npz")
    assert rows.keys() == columns.keys() and all(np.array_equal(rows[each], columns[each]) for each in columns)


def test_the_example_of_a_mixture():
    verdict = load_run(STORED / "evaluation-mixture")
    assert verdict.clean == 0.9 and verdict.robust == 0.5 and verdict.attack == "brief at Linf 0.01"
    assert verdict.audit.survivors == 14 and verdict.audit.closest_fooled == 3
    assert [alarm.name for alarm in verdict.alarms] == ["fab-breaks"]
    assert torch.equal(verdict.outputs["clean_alpha"], torch.full((20,), 0.3))
    assert verdict.adversarial.shape == (3, 3, 8, 8) and verdict.adversarial.dtype == torch.float32
    assert list(verdict.calibration()["clean"]) == ["mixture", "g", "h"]


def test_a_file_of_schema_0_has_no_outputs():
    verdict = load_run(ROOT / "results" / "verdicts" / "h-standard")
    assert verdict.robust == 0.473 and verdict.attack == "standard at Linf 0.03137"
    assert verdict.outputs == {} == verdict.calibration() and verdict.adversarial is None


def test_the_example_of_several_radii():
    curve = ads.load_run(STORED / "radii")
    assert isinstance(curve, RadiusCurve) and curve.radii == (0.003, 0.01)
    assert curve.clean == 0.75 and curve.robust == (0.625, 0.25)
    stored = read_json(STORED / "radii" / "result.json")
    assert json.loads(json.dumps(curve.summary()))["settings"] == stored["settings"]


@pytest.mark.parametrize("folder", CERTIFIED, ids=name)
def test_certificates_have_the_summary_that_was_stored(folder):
    found, stored = load_run(folder), read_json(folder / "result.json")
    assert isinstance(found, Certificates)
    assert json.loads(json.dumps(found.summary())) == {key: stored[key] for key in stored if key not in OUTSIDE}


@pytest.mark.parametrize("folder", [STORED / "tradeoff", ROOT / "results" / "resnet18"], ids=name)
def test_a_tradeoff_has_the_curves_that_were_stored(folder):
    found, stored = load_run(folder), read_json(folder / "result.json")
    assert isinstance(found, Tradeoff)
    assert json.loads(json.dumps(found.summary()))["curves"] == stored["curves"]


def test_every_file_key_and_column_is_documented():
    text = (ROOT / "docs" / "files.md").read_text(encoding="utf-8").replace("```", "")
    documented = set(re.findall(r"`([^`\n]+)`", text))
    for path in STORED.rglob("*.npz"):
        assert not set(read_rows(path)) - documented and path.name in documented
    for path in STORED.rglob("result.json"):
        assert not set(read_json(path)) - documented, path


# --- errors -------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(STORED / "evaluation-model", tmp_path / "run"))


def change(folder: Path, **changes) -> None:
    (folder / "result.json").write_text(json.dumps({**read_json(folder / "result.json"), **changes}))


def test_a_newer_schema_is_refused(copy):
    change(copy, schema=2)
    with pytest.raises(
        ValueError, match=r"expected files of schema 1 or less in .*, got schema 2: it was written by a n"
    ):
        load_run(copy)


def test_a_folder_may_be_any_path(copy):
    with os.scandir(copy.parent) as found:
        (folder,) = found
    assert load_run(folder).clean == load_run(copy).clean


def test_another_kind_is_refused(copy):
    change(copy, kind="mixtures")
    with pytest.raises(ValueError, match=r"expected a run of kind evaluation, radii, .*, got mixtures"):
        load_run(copy)
    with pytest.raises(ValueError, match="got unknown"):
        load_run(ROOT / "results" / "mixtures" / "resnet18-fast")


def test_missing_files_and_columns_are_named(copy):
    rows = read_rows(copy / "rows.npz")
    del rows["margin"]
    np.savez(copy / "rows.npz", **rows)
    with pytest.raises(ValueError, match=r"got none of \['margin'\]: evaluate the model again"):
        load_run(copy)
    (copy / "rows.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected one row per image in .*: copy the whole run folder"):
        load_run(copy)
    with pytest.raises(FileNotFoundError, match=r"expected a run folder with result\.json and rows\.npz, found no"):
        load_run(copy / "nowhere")


def test_unknown_columns_are_kept(copy):
    rows = read_rows(copy / "rows.npz")
    np.savez(copy / "rows.npz", **rows, later=np.arange(8))
    change(copy, later=1)
    assert load_run(copy).outputs["later"].tolist() == list(range(8))
