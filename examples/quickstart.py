"""Load two classifiers, mix them, choose alpha, and attack the mixture. Takes about a minute on two CPU cores.

python examples/quickstart.py [IMAGES]
"""

import sys

import adaptive_smoothing as ads

images = int(sys.argv[1]) if len(sys.argv) > 1 else 16

# Two classifiers of the package: g is accurate, h is robust.
g, h = ads.load_model("compact-standard"), ads.load_model("compact-robust")
mixed = ads.MixedClassifier(standard=g, robust=h, alpha=0.5)

# Choose alpha on validation images: the largest one with a clean accuracy of 90 %.
validation = ads.load_data("builtin", "val").take(slice(10 * images))
mixed = ads.tune(mixed, validation, clean_accuracy=0.90)
print(f"alpha {mixed.alpha:.3f} gives 90 % clean accuracy on {len(validation)} validation images")

# Attack each of the three through its own gradient, on test images.
test = ads.load_data("builtin", "test").take(images)
attack = ads.PGD(ads.Linf(8 / 255), steps=20, stop_when_fooled=True)
for name, model in {"g": g, "h": h, "mixed": mixed}.items():
    result = ads.evaluate(model, test, attack)
    low, high = result.interval
    print(f"{name:6} clean {result.clean:.1%}   PGD-20 {result.robust:.1%} ({low:.1%} to {high:.1%})")
