"""Imports point left: pac_core knows nobody, pac_rl and pac_vision know pac_core, cluster's top floor all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"pac_core", "pac_rl", "pac_vision", "cluster"}
MAY = {
    "pac_core": {"pac_core"},
    "pac_rl": {"pac_core", "pac_rl"},
    "pac_vision": {"pac_core", "pac_vision"},
    "cluster": {"pac_core", "cluster"},
}
BELOW_RAY = ["sources", "digests", "jobs", "folders", "engines", "results", "driver"]
TOP_FLOOR = {"cluster/tasks.py", "cluster/commands.py"}
# pac_core works where none of these is installed; matplotlib and pyarrow are met inside functions.
HEAVY = {"torch", "ray", "gymnasium", "mujoco", "matplotlib", "pyarrow", "sklearn", "mbrl"}
ORDER = {
    "pac_core": [
        "errors",
        "files",
        "arrays",
        "texts",
        "bounds",
        "splits",
        "covariances",
        "normalisers",
        "truths",
        "forecasts",
        "scores",
        "selection",
        "thresholds",
        "costs",
        "regions",
        "sets",
        "failures",
        "temperatures",
        "choices",
        "predictors",
        "ranked_scores",
        "label_scores",
        "shapes",
        "features",
        "plugins",
        "tubes",
        "score_fits",
        "limits",
        "obstacles",
        "feature_limits",
        "checker",
        "baselines",
        "evaluation",
        "alarms",
        "certificates",
        "documents",
        "ledger",
        "acceptance",
        "reweighting",
        "certification",
        "descents",
        "descending",
        "monitors",
        "class_names",
        "tables",
        "datasets",
        "figures",
        "options",
        "fitting",
        "verifying",
        "serving",
        "commands",
        "cli",
    ],
    "pac_rl": [
        "environments",
        "policies",
        "policy_files",
        "simulators",
        "trajectories",
        "policy_ratios",
        "ensembles",
        "training",
        "forecasts",
        "plans",
        "scored_plans",
        "limits",
        "fallbacks",
        "guards",
        "returns",
        "agents",
        "filters",
        "wrappers",
        "candidates",
        "scaled_tubes",
        "controllers",
        "runs",
        "episodes",
        "selections",
        "replays",
        "planned",
        "loops",
    ],
    "pac_vision": [
        "preprocessing",
        "decoding",
        "labels",
        "sources",
        "tars",
        "parquets",
        "images",
        "classifiers",
        "libraries",
        "models",
        "image_logits",
        "sequences",
        "shares",
        "videos",
        "box_scores",
        "tracks",
        "crops",
        "backbones",
        "trackers",
        "tracker_training",
        "tracking",
        "scoring",
        "serving",
        "track_scoring",
        "plots",
    ],
    "cluster": [
        "errors",
        "faults",
        "sources",
        "digests",
        "jobs",
        "folders",
        "engines",
        "writes",
        "pools",
        "attempts",
        "engine",
        "progress",
        "estimates",
        "session",
        "results",
        "driver",
        "stored_logits",
        "candidates",
        "sweeps",
        "figures",
        "launching",
        "tasks",
        "submission",
        "options",
        "vision_commands",
        "commands",
    ],
}
"""Files of each package along the flow of data: a file imports what stands before it."""

FILES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def imported(path: Path, *, top_only: bool = False) -> set[str]:
    """Dotted names imported by a file; at module level only, if asked."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} uses a relative import"
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_import_only_to_the_left(path: Path) -> None:
    home = path.relative_to(ROOT).parts[0]
    allowed = OURS if str(path.relative_to(ROOT)) in TOP_FLOOR else MAY[home]
    reached = {name.split(".")[0] for name in imported(path)} & OURS
    assert reached <= allowed


@pytest.mark.parametrize("path", sorted((ROOT / "pac_core").glob("*.py")), ids=lambda path: path.name)
def test_core_needs_nothing_heavy(path: Path) -> None:
    assert not {name.split(".")[0] for name in imported(path, top_only=True)} & HEAVY


@pytest.mark.parametrize("name", BELOW_RAY)
def test_runs_need_no_ray(name: str) -> None:
    reached = imported(ROOT / f"cluster/{name}.py")
    assert "ray" not in {other.split(".")[0] for other in reached}
    assert {other.split(".")[1] for other in reached if other.startswith("cluster.")} <= set(BELOW_RAY)


@pytest.mark.parametrize("package", ORDER)
def test_the_order_names_every_file(package: str) -> None:
    files = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    assert files == set(ORDER[package])


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in ORDER.items() for name in names]
)
def test_files_follow_the_dataflow(package: str, name: str) -> None:
    order = ORDER[package]
    reached = {
        part.split(".")[1]
        for part in imported(ROOT / f"{package}/{name}.py", top_only=True)
        if part.startswith(f"{package}.")
    }
    later = {other for other in reached & set(order) if order.index(other) > order.index(name)}
    assert not later
