"""The peers' own functions for two steps, on numpy arrays.

torchcp and mapie are installed without their dependencies (`make bench` does it). TorchCP imports
all its parts at once; three packages that only parts unused here call do not come with it, and
stand-ins take their place while it is imported: torchsort (a training loss), torch_geometric
(graphs), transformers (language models). None of them runs in the functions below.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin

STUBBED = "(unused imports of TorchCP stubbed: torchsort, torch_geometric, transformers)"
_STAND_INS = {
    "torchsort": ("soft_rank", "soft_sort"),
    "torch_geometric": (),
    "torch_geometric.nn": ("GCNConv",),
    "torch_geometric.loader": ("NeighborLoader",),
    "torch_geometric.utils": (),
    "torch_geometric.utils.convert": ("to_networkx",),
    "transformers": ("set_seed", "StoppingCriteria", "StoppingCriteriaList"),
}


@contextlib.contextmanager
def _missing_imports_stubbed() -> Iterator[None]:
    roots = {name.partition(".")[0] for name in _STAND_INS}
    missing = {root for root in roots if importlib.util.find_spec(root) is None}
    added = [name for name in _STAND_INS if name.partition(".")[0] in missing]
    for name in added:
        module = types.ModuleType(name)
        module.__path__ = []
        for attribute in _STAND_INS[name]:
            setattr(module, attribute, type(attribute, (), {}))
        sys.modules[name] = module
    yield
    for name in added:
        del sys.modules[name]


with _missing_imports_stubbed(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import LAC
    from torchcp.classification.trainer import TSTrainer
    from torchcp.utils.common import calculate_conformal_value


@torch.no_grad()
def torchcp_sets(cal: np.ndarray, labels: np.ndarray, test: np.ndarray, alpha: float) -> np.ndarray:
    """As its documentation shows: threshold and sets, each in one call."""
    predictor = _predictor(alpha)
    predictor.calculate_threshold(torch.from_numpy(cal), torch.from_numpy(labels))
    return predictor.predict_with_logits(torch.from_numpy(test)).bool().numpy()


@torch.no_grad()
def torchcp_sets_in_batches(
    cal: np.ndarray, labels: np.ndarray, test: np.ndarray, alpha: float, rows: int
) -> np.ndarray:
    """The same functions by batches, which is how they are fastest."""
    predictor = _predictor(alpha)
    pairs = zip(torch.from_numpy(cal).split(rows), torch.from_numpy(labels).split(rows), strict=True)
    predictor.q_hat = calculate_conformal_value(
        torch.cat([predictor.score_function(z, y) for z, y in pairs]), alpha
    )
    sets = torch.empty(test.shape, dtype=torch.bool)
    for z, out in zip(torch.from_numpy(test).split(rows), sets.split(rows), strict=True):
        out.copy_(predictor.predict_with_logits(z))
    return sets.numpy()


def mapie_sets(cal: np.ndarray, labels: np.ndarray, test: np.ndarray, alpha: float) -> np.ndarray:
    """SplitConformalClassifier around a model whose features are its probabilities."""
    classifier = SplitConformalClassifier(
        _Stored(cal.shape[1]), confidence_level=1 - alpha, conformity_score="lac", prefit=True
    )
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        classifier.conformalize(torch.softmax(torch.from_numpy(cal), dim=1).numpy(), labels)
        return classifier.predict_set(torch.softmax(torch.from_numpy(test), dim=1).numpy())[1][:, :, 0]


def torchcp_temperature(logits: np.ndarray, labels: np.ndarray, steps: int) -> float:
    """Its trainer: LBFGS with learning rate 0.01 and no line search."""
    trainer = TSTrainer(torch.nn.Identity(), init_temperature=1.0, verbose=False)
    batches = [(torch.from_numpy(logits), torch.from_numpy(labels))]
    return 1 / float(trainer.train(batches, lr=0.01, num_epochs=steps).get_temperature())


def strong_wolfe_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """torch's LBFGS with a strong-Wolfe line search."""
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    temperature = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([temperature], lr=1, max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(z / temperature, y)
        value.backward()
        return value

    optimizer.step(loss)
    return 1 / temperature.item()


def _predictor(alpha: float) -> SplitPredictor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SplitPredictor(LAC(score_type="softmax"), alpha=alpha)


class _Stored(ClassifierMixin, BaseEstimator):
    def __init__(self, classes: int = 2) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)
        self.n_features_in_ = classes

    def fit(self, X: np.ndarray, y: np.ndarray | None = None) -> _Stored:
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return X

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X.argmax(axis=1)
