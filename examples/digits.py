"""A classifier of your own: label sets for handwritten digits, with a certificate, in seconds.

The promise: the set of a new digit drawn like these misses it with probability at most 2%, with confidence
1 - 1e-4. A second look at the same digits would void it, so the ledger refuses one: see docs/guarantees.md.
"""

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from pac_core import LogitForecast, PACLevel, certify, evaluate, write_certificate
from pac_vision.plots import Picture, picture_grid

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
drawn = [Image.fromarray(np.uint8(255 - image.reshape(8, 8) * 15.9)) for image in images[rest][test]]
pictures = [
    Picture.of_set(image.copy, held, "0123456789", label=label)
    for image, held, label in zip(drawn, sets.labels(), truth, strict=True)
]
doubtful = [pictures[i] for i in np.argsort(-sets.size(), kind="stable")[:24]]
grid = [doubtful[i : i + 6] for i in range(0, 24, 6)]
picture_grid(grid, title="Digits with the largest sets; red: the truth is missed").savefig("digits.png")
