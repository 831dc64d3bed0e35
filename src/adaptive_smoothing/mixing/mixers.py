"""The mixers that can be stored with a mixture and trained by name."""

from __future__ import annotations

from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.network import MixingNetwork
from adaptive_smoothing.settings.checks import check_choice
from adaptive_smoothing.settings.user_code import from_packages, load_registered

MIXERS: dict[str, type[Mixer]] = {mixer.kind: mixer for mixer in (MixingNetwork, FineTunedTail)}
# Kinds in files of older versions.
OLD_KINDS = {"second-ending": FineTunedTail.kind}


def find_mixer(kind: str) -> type[Mixer]:
    """Return the class of a kind of mixer: one of `MIXERS`, or one that another package registers."""
    if kind in MIXERS:
        return MIXERS[kind]
    others = from_packages("mixers")
    check_choice("the kind of the mixer", kind, {**MIXERS, **others})
    return load_registered(others[kind])


def is_storable(mixer: object) -> bool:
    """Return whether `find_mixer` finds the class of a mixer by its kind."""
    kind = getattr(mixer, "kind", None)
    return (kind in MIXERS or kind in from_packages("mixers")) and isinstance(mixer, find_mixer(kind))
