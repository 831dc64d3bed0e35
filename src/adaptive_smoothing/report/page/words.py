"""What a page says about its runs in words and tables, which the terminal shows as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from adaptive_smoothing.certification.certificates import Certificates
from adaptive_smoothing.evaluation.comparison import Comparison
from adaptive_smoothing.evaluation.cost import Cost
from adaptive_smoothing.evaluation.tradeoff import Tradeoff
from adaptive_smoothing.evaluation.verdict import Verdict
from adaptive_smoothing.report import verdicts
from adaptive_smoothing.report.certified import certified_sentences, certified_table
from adaptive_smoothing.report.comparison import frontier_table
from adaptive_smoothing.report.page.dials import LOCAL
from adaptive_smoothing.report.page.runs import PageRun, StoredMixture, own, threat_of
from adaptive_smoothing.report.tables import Table
from adaptive_smoothing.report.tradeoff import sentences as tradeoff_words
from adaptive_smoothing.report.tradeoff.report import (
    Choice,
    Report,
    accuracy_at,
    attack_name,
    base_accuracies,
    measured_accuracy,
)
from adaptive_smoothing.report.tradeoff.tables import tables as tradeoff_tables
from adaptive_smoothing.results import percent_with_interval


def title_of(runs: Sequence[PageRun]) -> str:
    """Return a title for a page: the name of its run, or how many there are."""
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"


def subtitle(runs: Sequence[PageRun]) -> str:
    """Return the data and the attacks of the runs, each once."""
    found = []
    for run in runs:
        result = run.result
        if isinstance(result, Comparison):
            found.append(f"stored comparison, {result.images:,} images under attack")
            continue
        if isinstance(result, StoredMixture):
            found.append(f"a stored mixture, {len(result.curve.low):,} validation images, not attacked")
            continue
        images = len(result.labels) if isinstance(result, Verdict) else len(result.rows["label"])
        how = result.attack if isinstance(result, Verdict) else _measured(run)
        found.append(f"{run.settings.get('data', 'data')}, {images:,} images, {how}")
    return "; ".join(dict.fromkeys(found))


def _measured(run: PageRun) -> str:
    if isinstance(run.result, Tradeoff):
        return f"{attack_name(run.result)} at {threat_of(run)}"
    return f"certified by {run.settings['method']}"


def tiles(runs: Sequence[PageRun]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield a name and its figures for each classifier that was measured."""
    for run in own(runs):
        result = run.result
        if isinstance(result, Verdict):
            clean = percent_with_interval(result.clean, result.clean_interval)
            yield run.name, {"clean": clean, "robust": percent_with_interval(result.robust, result.interval)}
        elif isinstance(result, Certificates):
            yield run.name, _certified_tile(result)
        elif isinstance(result, StoredMixture):
            yield run.name, {"clean, validation": str(measured_accuracy(result.clean_correct))}
        elif isinstance(result, Tradeoff):
            yield from _tradeoff_tiles(run, result)


def _certified_tile(found: Certificates) -> Mapping[str, str]:
    clean = {"clean": str(measured_accuracy(found.correct))}
    if found.settings["method"] == LOCAL:
        return clean
    certified, mean = measured_accuracy(found.correct & found.certified), found.summary()["radius"]["mean"]
    return clean | {"certified, radius > 0": str(certified), f"mean {found.settings['norm']} radius": f"{mean:.3f}"}


def _tradeoff_tiles(run: PageRun, found: Tradeoff) -> Iterator[tuple[str, Mapping[str, str]]]:
    attacked = f"under {attack_name(found)}"
    for letter in ("g", "h"):
        name = dict(run.models.get(letter) or {}).get("name", letter)
        clean, robust = base_accuracies(found, letter)
        yield f"{letter}: {name}", {"clean": str(clean), attacked: str(robust)}
    if (choice := _choice(run)) is not None:
        clean, robust = (accuracy_at(found, curve, choice.alpha) for curve in ("clean", "worst"))
        yield f"mixture, α = {choice.alpha:.3f}", {"clean": str(clean), attacked: str(robust)}


def words(runs: Sequence[PageRun]) -> Iterator[str]:
    """Yield the results in words. Of several evaluations the accuracies are left out, because the tiles have them."""
    for run in own(runs):
        result, name = run.result, f"{run.name}: " if len(runs) > 1 else ""
        if isinstance(result, Verdict):
            first = 1 if len(runs) > 1 else 0
            yield from (f"{name}{text}" for text in verdicts.sentences(result)[first:])
        elif isinstance(result, Certificates):
            yield from (f"{name}{text}" for text in certified_sentences(result))
        elif isinstance(result, StoredMixture):
            yield f"{name}{stored_mixture_words(result)}"
        elif isinstance(result, Tradeoff):
            yield from (f"{name}{text}" for text in tradeoff_words.sentences(_report(run, result)))


def stored_mixture_words(mixture: StoredMixture) -> str:
    """Return the clean accuracy of a mixture at its setting, and what is not known."""
    setting = f"{mixture.curve.parameter} {mixture.setting:.4g}"
    return (
        f"At {setting} the mixture is correct on {measured_accuracy(mixture.clean_correct)} of the "
        f"{len(mixture.curve.low):,} validation images. It was not attacked here: adaptive-smoothing evaluate measures "
        "its robust accuracy."
    )


def tables_of(run: PageRun) -> list[Table]:
    """Return all tables of a run."""
    result = run.result
    if isinstance(result, Verdict):
        costs = {name: Cost(**cost) for name, cost in dict(run.facts.get("cost", {})).items()}
        return verdicts.verdict_tables(result, costs)
    if isinstance(result, Certificates):
        return [] if result.settings["method"] == LOCAL else [certified_table(result)]
    if isinstance(result, Comparison):
        return [frontier_table(result)]
    if isinstance(result, StoredMixture):
        return []
    return tradeoff_tables(_report(run, result))


def alarm_words(run: PageRun) -> Iterator[tuple[str, str]]:
    """Yield the alarms of an evaluation: `alarm`, `none` or `off`, and a text."""
    if not isinstance(run.result, Verdict):
        return
    if run.result.alarms is None:
        yield "off", "Alarms were off. Nothing checked whether the attacks could do their work."
    elif not run.result.alarms:
        yield "none", "No alarm fired: nothing suggests that the attacks failed for other reasons than robustness."
    for alarm in run.result.alarms or ():
        yield "alarm", f"Alarm {alarm.name}: {alarm.observation}; {alarm.advice}."


def _report(run: PageRun, result: Tradeoff) -> Report:
    return Report(result, choice=_choice(run), facts=dict(run.facts))


def _choice(run: PageRun) -> Choice | None:
    found = run.facts.get("choice")
    return Choice(**found) if found else None
