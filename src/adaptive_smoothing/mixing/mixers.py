"""The mixers that can be stored with a mixture and trained by name."""

from __future__ import annotations

from adaptive_smoothing.mixing.base_classifiers import Mixer
from adaptive_smoothing.mixing.fine_tuned_tail import FineTunedTail
from adaptive_smoothing.mixing.network import MixingNetwork

MIXERS: dict[str, type[Mixer]] = {mixer.kind: mixer for mixer in (MixingNetwork, FineTunedTail)}
# Kinds in files of older versions.
OLD_KINDS = {"second-ending": FineTunedTail.kind}
