"""A classifier of your own: label sets for handwritten digits, with a certificate, in seconds.

The promise: the set of a new digit drawn like these misses it with probability at most 2%, with confidence
1 - 1e-4. A second look at the same digits would void it, so the ledger refuses one: see docs/guarantees.md.
"""

import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from pac_core import LogitForecast, PACLevel, certify, evaluate, write_certificate

images, labels = load_digits(return_X_y=True)
ids = np.array([f"digit-{i}" for i in range(len(images))])
seen, rest = np.split(np.random.default_rng(0).permutation(len(images)), [500])
model = MLPClassifier((32,), max_iter=2000, tol=1e-3, random_state=0).fit(images[seen] / 16, labels[seen])
forecast = LogitForecast(model.predict_log_proba(images[rest] / 16).clip(-70))
made = certify(
    forecast, labels[rest], PACLevel(0.02, 1e-4), ids=ids[rest], tune=150, calibrate=700, seed=0,
    unit="digit", ledger="digits-ledger.json", train_ids=ids[seen], train="scikit-learn digits",
)  # fmt: skip
write_certificate(made.certificates[0], "digits-certificate.json")
print(made.certificates[0])

test = made.parts.test.rows
sets, truth = made.certificates[0].predictor.sets(forecast.take(test)), labels[rest][test]
print(evaluate(sets, truth, PACLevel(0.02, 1e-4)))
held, inside = sets.labels(), sets.contains(truth)
figure, panels = plt.subplots(4, 6, figsize=(9, 7.2), layout="constrained")
for axes, i in zip(panels.flat, np.argsort(-sets.size(), kind="stable"), strict=False):
    axes.imshow(-images[rest][test][i].reshape(8, 8), cmap="gray")
    axes.set_title("{" + ", ".join(map(str, held[i])) + "}", color="black" if inside[i] else "red")
    axes.set(xticks=[], yticks=[])
figure.suptitle("Digits with the largest sets; red: the truth is missed")
figure.savefig("digits.png")
