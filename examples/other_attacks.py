"""Attack a mixed classifier with torchattacks, foolbox, ART and AutoAttack, those that are installed.

python examples/other_attacks.py [IMAGES]
"""

import sys
from importlib.util import find_spec

from torch import nn

import adaptive_smoothing as ads

EPS, STEPS = 8 / 255, 5
images = int(sys.argv[1]) if len(sys.argv) > 1 else 8
mixed = ads.MixedClassifier(ads.load_model("compact-standard"), ads.load_model("compact-robust"), alpha=0.85)
data = ads.load_data("builtin", "test").take(images)


def with_torchattacks():
    import torchattacks

    return torchattacks.PGD(mixed, eps=EPS, steps=STEPS)


def with_foolbox():
    import foolbox

    attack = foolbox.attacks.LinfPGD(steps=STEPS)
    return lambda model, x, y: attack(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=EPS)[1]


def with_art():
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(mixed, nn.CrossEntropyLoss(), (3, 32, 32), 10, clip_values=(0, 1))
    return ProjectedGradientDescent(classifier, eps=EPS, eps_step=EPS / 4, max_iter=STEPS, verbose=False)


def with_pyautoattack():
    from pyautoattack import AutoAttack

    attack = AutoAttack(mixed, norm="Linf", eps=EPS, version="custom", attacks=["apgd-ce"])
    attack.apgd.n_restarts, attack.apgd.n_iter = 1, STEPS  # the whole of AutoAttack takes minutes on a CPU
    return attack


for make in (with_torchattacks, with_foolbox, with_art, with_pyautoattack):
    library = make.__name__.removeprefix("with_")
    if find_spec(library) is None:
        print(f"{library:13} is not installed")
    else:
        print(f"{library:13} robust {ads.evaluate(mixed, data, make()).robust:.1%} of {images} images")
