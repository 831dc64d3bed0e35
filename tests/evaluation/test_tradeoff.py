"""A trade-off is read back from its files."""

from pathlib import Path

import numpy as np
import pytest

from adaptive_smoothing.evaluation.tradeoff import (
    ALPHAS,
    MIX_ALPHAS,
    Tradeoff,
    load_facts,
    load_tradeoff,
    save_tradeoff,
)
from adaptive_smoothing.runs.folder import has_result


@pytest.fixture
def large() -> Tradeoff:
    """As large as CIFAR-10's test split; each image is correct on one interval of alphas."""
    chance = np.random.default_rng(0)
    rows: dict[str, np.ndarray] = {"index": np.arange(10_000), "label": chance.integers(0, 10, 10_000)}
    for view in ("clean", "std", "rob"):
        ends = np.sort(chance.uniform(-0.5, 1.5, (2, 10_000)), axis=0)
        rows[view] = (np.array(ALPHAS)[:, None] > ends[0]) & (np.array(ALPHAS)[:, None] < ends[1])
        for model in "gh":
            rows[f"{view}_{model}"] = chance.random(10_000) < 0.8
            rows[f"{view}_{model}_gap"] = chance.beta(2, 0.5, 10_000).astype(np.float32)
    rows["mix"] = chance.random((len(MIX_ALPHAS), 10_000)) < 0.4
    settings = {"data": "cifar10/test", "norm": "Linf", "eps": 8 / 255, "steps": 20}
    return Tradeoff(np.array(ALPHAS), np.array(MIX_ALPHAS), rows, settings)


def test_predictions_are_stored_exactly_and_gaps_in_half_precision(large: Tradeoff, tmp_path: Path) -> None:
    assert not has_result(tmp_path)
    save_tradeoff(tmp_path, large, {"seconds": 3})
    back = load_tradeoff(tmp_path)
    assert has_result(tmp_path) and load_facts(tmp_path) == {"seconds": 3}
    assert np.array_equal(back.alphas, large.alphas) and np.array_equal(back.mix_alphas, large.mix_alphas)
    assert back.rows.keys() == large.rows.keys() and back.settings == large.settings
    for name, column in large.rows.items():
        if column.dtype == np.float32:
            assert np.abs(back.rows[name] - column).max() < 3e-4
        else:
            assert np.array_equal(back.rows[name], column)
    assert back.gaps()["h pgd"]["right_mean"] == pytest.approx(large.gaps()["h pgd"]["right_mean"], abs=1e-5)


def test_a_run_on_10000_images_takes_at_most_600_kb(large: Tradeoff, tmp_path: Path) -> None:
    save_tradeoff(tmp_path, large, {})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 600_000


def test_a_folder_without_a_run_is_refused(large: Tradeoff, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a run folder with result\.json"):
        load_tradeoff(tmp_path)
    del large.rows["label"]
    (tmp_path / "result.json").write_text('{"curves": {}}')
    np.savez(tmp_path / "rows.npz", alphas=large.alphas, mix_alphas=large.mix_alphas)
    with pytest.raises(ValueError, match="got files without 'label'"):
        load_tradeoff(tmp_path)


def test_a_tradeoff_is_printed_in_one_line(large: Tradeoff) -> None:
    assert repr(large) == "Tradeoff: 10,000 images, 101 alphas, 14 of them attacked"
