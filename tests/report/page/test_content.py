"""The data of a page: its size, its numbers, and texts that look like markup."""

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adaptive_smoothing.attacks.cascade import stage_title
from adaptive_smoothing.evaluation.pictures import Pictures
from adaptive_smoothing.report.load import load_run
from adaptive_smoothing.report.page.content import content, differences
from adaptive_smoothing.report.page.page import page, write_page
from adaptive_smoothing.report.page.runs import PageRun, read_runs
from adaptive_smoothing.report.page.words import title_of
from adaptive_smoothing.results import difference

ROOT = Path(__file__).parents[3]
STORED = Path(__file__).parents[1] / "stored"
RUNS = sorted(
    [
        *STORED.iterdir(),
        *(ROOT / "results" / "verdicts").iterdir(),
        *(ROOT / "results" / "mixtures").iterdir(),
        *(folder for folder in (ROOT / "results" / "certified").iterdir() if folder.is_dir()),
        ROOT / "results" / "resnet18",
        ROOT / "src" / "adaptive_smoothing" / "report" / "stored",
    ]
)
VOID = {"meta", "link", "br"}


class Reader(HTMLParser):
    """Checks that elements are closed in order. Keeps the elements, the text, the data, and what would be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: dict[str, int] = {}
        self.texts: list[str] = []
        self.loaded: list[str] = []
        self.data = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.loaded += [value for name, value in attributes if name in ("src", "srcset", "href")]
        self.is_data = ("id", "data") in attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.data += data if self.is_data else ""
        elif "style" not in self.open:
            self.texts.append(data)


def read(text):
    """Return the elements of a page and its data; numbers that JSON does not have are an error."""

    def refuse(constant):
        raise AssertionError(constant)

    found = Reader(text)
    assert not found.open and all(address.startswith(("#", "data:")) for address in found.loaded)
    return found, json.loads(found.data, parse_constant=refuse)


def pictures_of(verdict, data, count=None, seed=0):
    """Return pictures of a run; with a count, of noise of 32 by 32 pixels, which compresses badly."""
    found = Pictures.of(verdict, data)
    if count is None:
        return found
    noise = np.random.default_rng(seed).integers(0, 256, (2, count, 32, 32, 3), dtype=np.uint8)
    return replace(found, rows=np.arange(count), versions={"clean": noise[0], "attacked": noise[1]})


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_every_stored_run_has_a_page(folder):
    runs = read_runs([folder])
    found, data = read(page(runs))
    text = " ".join(found.texts)
    assert len(data["runs"]) == len(runs) and found.tags["script"] == 2
    assert all(run.name.split(",")[0] in text for run in runs)


def test_runs_of_the_first_schema_have_a_page():
    runs = read_runs([STORED])
    assert len(runs) == 6 and {type(run.result).__name__ for run in runs} == {"Verdict", "Certificates", "Tradeoff"}
    assert len({run.name for run in runs}) == 6
    _, data = read(page(runs))
    assert [run["name"] for run in data["runs"]] == [run.name for run in runs]


def test_a_page_stays_below_five_megabytes(toys, verdicts):
    data = toys.data(48)
    runs = [
        replace(toys.run(verdict, name=name), pictures=pictures_of(verdict, data, 48 * 10, seed))
        for seed, (name, verdict) in enumerate(
            (f"{alpha} {k}", each) for k in (1, 2) for alpha, each in verdicts.items()
        )
    ]
    runs = [replace(run, pictures=replace(run.pictures, rows=run.pictures.rows % 48)) for run in runs]
    text = page(runs)
    assert len(text.encode()) < 5_000_000
    counts = [run["pictures"]["count"] for run in json.loads(Reader(text).data)["runs"]]
    assert max(counts) - min(counts) <= 2 and 50 < counts[0] < 480


def test_probabilities_of_many_classes_take_room_from_pictures(toys, data, verdicts):
    verdict = verdicts[0.4]
    wide = {name: column.repeat(1, 25) for name, column in verdict.outputs.items() if name.endswith("probabilities")}
    run = toys.run(replace(verdict, outputs={**verdict.outputs, **wide}), data)
    many = replace(run, pictures=run.pictures.take(np.arange(400) % 20))
    text = page([replace(many, name=str(k)) for k in range(8)])
    assert 3_000_000 < len(text.encode()) < 5_000_000


def test_pictures_that_fit_are_all_there_and_lossless(toys, data, verdicts):
    run = toys.run(verdicts[0.4], data)
    found = content([run])["runs"][0]["pictures"]
    assert found["count"] == 20 and found["columns"] == 5 and found["classes"] == data.classes
    for sheet, versions in zip(found["sheets"], run.pictures.versions.values(), strict=True):
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["address"].partition(",")[2]))))
        for number in range(20):
            y, x = 8 * (number // 5), 8 * (number % 5)
            assert np.array_equal(image[y : y + 8, x : x + 8], versions[number])


ATTACK_TEXTS = ("</script><b>x</b>", "<!--<script>", "a\"b'c&d", "</style>")


@pytest.mark.parametrize("text", ATTACK_TEXTS)
def test_texts_that_look_like_markup_are_texts(toys, text):
    data = toys.data(12, classes=[text, *toys.classes[1:]])
    verdict = toys.attacked(toys.mixture(0.5), data)
    verdict = replace(verdict, stages=(text, text), settings={**verdict.settings, "data": text})
    models = {"g": {"name": text}, "h": {"name": "h"}, "alpha": 0.5, "mixture": text}
    run = PageRun(text, verdict, models, {"device": text}, Pictures.of(verdict, data), "folder")
    plain, _ = read(page([replace(run, name="plain"), run], title="title"))
    found, shown = read(page([run, replace(run, name="other")], title=text))
    assert found.tags == plain.tags and found.tags["script"] == 2 and "b" not in found.tags
    assert shown["runs"][0]["name"] == text and shown["runs"][0]["pictures"]["classes"][0] == text
    assert any(text in each for each in found.texts)


def test_infinite_margins_and_many_classes_are_shown(toys, data, verdicts):
    verdict = verdicts[0.4]
    margin = verdict.margin.clone()
    margin[:4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38])
    outputs = {name: column for name, column in verdict.outputs.items() if "probabilities" not in name}
    for changed in (
        replace(verdict, margin=margin),
        replace(verdict, outputs=outputs),  # more than 100 classes
        replace(verdict, outputs={}),  # a run of an older version
        replace(verdict, attacked_predictions=None),
    ):
        run = replace(toys.run(changed, data), pictures=replace(Pictures.of(verdict, data), classes=()))
        _, shown = read(page([run]))
        counts = shown["runs"][0]["margins"]
        known = margin.isfinite() if changed.margin is margin else torch.ones_like(margin, dtype=torch.bool)
        assert sum(counts["robust"] + counts["fooled"]) == int((known & verdict.clean_correct).sum())


def test_a_plain_model_has_no_alpha_and_no_dial(toys, data):
    verdict = toys.attacked(toys.mixture(0.5).robust, data)
    _, shown = read(page([toys.run(verdict, data, model={"name": "toy"})]))
    (run,) = shown["runs"]
    assert (
        not shown["dials"]
        and "alpha" not in run
        and set(run["pictures"]["probabilities"])
        == {
            "clean_model",
            "attacked_model",
        }
    )
    assert run["clean"]["count"] == int(verdict.clean_correct.sum())
    assert run["robust"]["count"] == int(verdict.robust_correct.sum())


def test_every_image_of_one_attack_has_a_reason(toys, data, verdicts):
    """A run with a single stage, some of whose images were misclassified without an attack."""
    verdict = verdicts[0.4]
    one = replace(verdict, stages=("mine",), fooled_by=verdict.fooled_by.clamp(max=0))
    reasons = content([toys.run(one, data)])["runs"][0]["pictures"]["fooledBy"]
    rows = Pictures.of(verdict, data).rows
    expected = {-2: "misclassified", -1: "", 0: stage_title("mine")}
    assert reasons == [expected[by] for by in one.fooled_by[rows].tolist()]


def test_runs_are_compared_on_the_images_of_both(toys, data, verdicts):
    first, second = verdicts.values()
    part = toys.attacked(toys.mixture(0.9), data.take(torch.arange(10, 40)))
    runs = [toys.run(each, name=name) for each, name in ((first, "first"), (second, "second"), (part, "part"))]
    other = replace(first, settings={**first.settings, "data": "others"})
    reference = replace(toys.run(first, name="reference"), is_reference=True)
    found = differences([*runs, toys.run(other, name="other"), reference])
    assert [(row["name"], row["from"], row["images"]) for row in found] == [
        ("second", "first", 48),
        ("part", "first", 30),
    ]
    for row, mine, rows in zip(found, (second, part), (slice(None), slice(10, 40)), strict=True):
        for what in ("clean", "robust"):
            ours, theirs = (getattr(each, f"{what}_correct").numpy() for each in (mine, first))
            assert row[what] == difference(ours, theirs[rows])


def test_a_run_for_comparison_is_a_point_without_a_tile(toys, verdicts):
    mine, stored = (toys.run(each, name=name) for each, name in zip(verdicts.values(), ("mine", "stored"), strict=True))
    text = page([mine, replace(stored, is_reference=True)])
    _, shown = read(text)
    assert [point["name"] for point in shown["points"]] == ["mine", "stored"]
    assert text.count('class="tile"') == 1 and "<h3>mine</h3><dl>" in text


def test_how_well_alpha_tells_attacked_images_from_clean_ones(toys, learned):
    verdict = learned[0.5]
    (run,) = content([toys.run(verdict)])["runs"]
    clean, attacked = (verdict.outputs[f"{version}_alpha"].double() for version in ("clean", "attacked"))
    attacked = attacked[verdict.clean_correct]
    larger = (attacked[:, None] > clean).double() + (attacked[:, None] == clean).double() / 2
    assert run["alpha"]["auroc"] == pytest.approx(larger.mean().item())
    assert sum(run["alpha"]["clean"]) == 48 and sum(run["alpha"]["attacked"]) == len(attacked)


def test_a_page_has_the_numbers_of_its_runs(tmp_path, toys, data):
    verdict = toys.write(tmp_path / "run", toys.mixture(0.4), data, 0.4)
    runs = read_runs([tmp_path])
    assert title_of(runs) == "toy-g + toy-h, α = 0.4" and title_of([*runs, *runs]) == "2 runs compared"
    path = write_page(tmp_path / "page.html", runs)
    found, shown = read(path.read_text(encoding="utf-8"))
    text = " ".join(found.texts).replace("\xa0", " ")
    assert f"{100 * verdict.clean:.1f} % (" in text and f"{100 * verdict.robust:.1f} % (" in text
    assert "Alarms were off." in text and "a <b>test</b>" in text and f"{len(data)} images, short at Linf" in text
    assert shown["runs"][0]["threat"] == "Linf 0.02" and load_run(tmp_path / "run").clean == verdict.clean
    for sentence in re.findall(r"\d+ of (\d+) images", text):
        assert int(sentence) == len(data)


def test_a_page_of_no_runs_is_an_error():
    with pytest.raises(ValueError, match="expected one or more runs for a page, got none"):
        page([])
