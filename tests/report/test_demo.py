import numpy as np
import torch
from rich.console import Console

from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.evaluation.verdict import MISCLASSIFIED, ROBUST, Verdict
from adaptive_smoothing.report.demo import ROLES, DemoResult, StoredRun, demo_sentences, demo_table
from adaptive_smoothing.report.tables import rich_table

# Of 100 images, the number that are correct, and the number that are robust.
LIVE = {"learned": (90, 45), "fixed": (88, 35), "robust": (80, 50), "standard": (95, 0)}
STORED = {"learned": (91, 44), "fixed": (89, 33), "robust": (82, 70), "standard": (93, 0)}


def verdict(correct: int, robust: int) -> Verdict:
    by = torch.full((100,), MISCLASSIFIED)
    by[:correct], by[:robust] = 0, ROBUST
    nothing = torch.zeros(100)
    return Verdict(
        index=torch.arange(100),
        labels=nothing.long(),
        clean_predictions=(by == MISCLASSIFIED).long(),
        attacked_predictions=(by != ROBUST).long(),
        fooled_by=by,
        margin=nothing,
        queries=nothing.long(),
        clean_gap=nothing,
        attacked_gap=nothing,
        stages=("margin-pgd",),
        settings={},
        attack="first stages of fast at Linf 8/255",
    )


def stored(correct: int, robust: int) -> StoredRun:
    return StoredRun(np.arange(100) < correct, np.arange(100) < robust, "adaptive")


def result(*roles: str) -> DemoResult:
    return DemoResult(
        {role: verdict(*LIVE[role]) for role in roles}, 0.8444, 0.9, {role: stored(*STORED[role]) for role in ROLES}
    )


def test_the_table_fits_on_a_narrow_terminal() -> None:
    console = Console(width=80, record=True, quiet=False)
    console.print(rich_table(demo_table(result(*ROLES))))
    lines = console.export_text().splitlines()
    (learned,) = (line.split("  ") for line in lines if "learned α" in line and "90.0" in line)
    assert [cell.strip() for cell in learned if cell.strip()] == [
        "mixture, learned α",
        "90.0 (82 to 95)",
        "45.0 (35 to 55)",
        "91.0",
        "44.0",
    ]


def test_the_sentences_compare_the_models() -> None:
    kept, lead, agreement, stronger = demo_sentences(result(*ROLES))
    assert "10.0 points more clean accuracy and keeps 90 % of its robust accuracy" in kept
    assert "5.0 points less clean accuracy and 45.0 points more robust accuracy" in kept
    assert "by +10.0 ± 6.3 points" in lead and "stored runs: +11.0 ± 6.5" in lead
    assert "7 of 8 intervals contain the stored accuracy; not: robust accuracy of h, robust" in agreement
    assert "adaptive" in stronger and "44.0 % of mixture, learned α (−1.0)" in stronger
    assert "33.0 % of mixture, fixed α = 0.844" in stronger


def test_an_interrupted_demo_is_about_the_models_that_are_done() -> None:
    alone = result("learned")
    assert alone.interrupted and alone.lead() is None and list(alone.summary()["models"]) == ["learned"]
    agreement, stronger = demo_sentences(alone)
    assert agreement == "All 2 intervals contain the stored accuracy." and "α = 0.844" not in stronger
    assert not result(*ROLES).interrupted


def test_a_stored_run_of_fewer_images_is_not_compared_on_others() -> None:
    run = stored(91, 44)
    assert run.robust_at(np.array([0, 43, 44])).tolist() == [True, True, False]
    assert run.robust_at(np.array([99, 100])) is None


def test_h_is_read_from_the_attack_on_h_and_g_from_the_attack_on_g() -> None:
    columns = {"clean_g": "110", "std_g": "011", "rob_g": "111", "clean_h": "101", "std_h": "111", "rob_h": "001"}
    rows = {name: np.array(list(bits), int).astype(bool) for name, bits in columns.items()}
    sweep = Tradeoff(np.zeros(1), np.zeros(1), rows, {"steps": 20})
    g, h = (StoredRun.of_base(sweep, letter) for letter in "gh")
    assert g.robust.tolist() == [False, True, False] and h.robust.tolist() == [False, False, True]
    assert g.attack == h.attack == "PGD-20" and h.clean.tolist() == [True, False, True]
