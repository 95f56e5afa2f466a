"""Stored tracks become Gaussians per frame and one score per sequence."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pac_core import InvalidInput
from pac_core.errors import UnreadableFile
from pac_vision import BoxScore, read_tracks
from pac_vision.tasks import ScoreTracks
from pac_vision.tracking import Tracks, share_score

LENGTHS = {"Deer": 30, "Jogging.2": 20, "Car4": 41, "Jogging.1": 20}


def arrays(**changed: Any) -> dict[str, Any]:
    drawn = np.random.default_rng(0)
    total = sum(LENGTHS.values())
    truth = np.concatenate([drawn.uniform(0, 200, (total, 2)), drawn.uniform(10, 60, (total, 2))], axis=1)
    members = truth[:, None] + drawn.normal(0, 5, (total, 6, 4))
    made = {"sequence": list(LENGTHS), "length": list(LENGTHS.values()), "truth": truth, "members": members}
    return made | changed


def stored(path: Path, **changed: Any) -> Path:
    np.savez(path, **{name: array for name, array in arrays(**changed).items() if array is not None})
    return path


@pytest.fixture
def tracks(tmp_path: Path) -> Tracks:
    return read_tracks(stored(tmp_path / "tracks.npz"))


def score(scorer: ScoreTracks, *ids: str) -> dict[str, Any]:
    return scorer(SimpleNamespace(ids=ids), {})


def test_the_targets_of_a_sequence_are_one_unit(tracks: Tracks) -> None:
    assert tracks.ids.tolist() == ["Car4", "Deer", "Jogging"]
    assert tracks.targets["Jogging"] == [slice(91, 111), slice(30, 50)]
    first = arrays()["truth"][0]
    np.testing.assert_allclose(tracks.truth[0], [*first[:2], *(first[:2] + first[2:])])
    assert score(ScoreTracks(tracks, 0.1), "Jogging", "Deer")["frames"].tolist() == [19, 29]


@pytest.mark.parametrize("gamma", [0, 0.1, 0.5])
def test_scores_are_those_written_out(tracks: Tracks, gamma: float) -> None:
    deer, second, first = slice(1, 30), slice(31, 50), slice(92, 111)  # the first box was given
    errors = []
    for rows in (deer, first, second):
        members = tracks.members[rows]
        errors.append((abs(tracks.truth[rows] - members.mean(1)) / members.std(1).clip(1)).max(1))
    found = score(ScoreTracks(tracks, gamma), "Deer", "Jogging")
    assert found["ids"].tolist() == ["Deer", "Jogging"]
    wanted = [share_score(errors[0], gamma), share_score(np.maximum(errors[1], errors[2]), gamma)]
    np.testing.assert_allclose(found["scores"], wanted)
    members = tracks.members[deer]
    spread = np.sqrt((members.std(1).clip(1) ** 2).sum(1)).mean()
    np.testing.assert_allclose(found["spreads"][0], spread)


def test_scores_do_not_depend_on_the_shard(tracks: Tracks) -> None:
    scorer = ScoreTracks(*pickle.loads(pickle.dumps((tracks, 0.1))), device="cpu")
    together = score(scorer, "Car4", "Deer", "Jogging")["scores"].tolist()
    assert score(scorer, "Jogging", "Deer", "Car4")["scores"].tolist() == together[::-1]
    assert [score(scorer, name)["scores"][0] for name in tracks.ids] == together


def test_members_that_agree_are_not_certain(tmp_path: Path) -> None:
    made = arrays()
    made["members"] = np.repeat(made["truth"][:, None] + 3, 6, axis=1)
    tracks = read_tracks(stored(tmp_path / "tracks.npz", **made))
    found = score(ScoreTracks(tracks, 0, BoxScore(4.0)), "Deer")
    assert found["scores"][0] == pytest.approx(3)  # corners: 3, 3, 6, 6


def test_frames_without_a_target_do_not_count(tmp_path: Path) -> None:
    truth = arrays()["truth"]
    truth[:5] = np.nan
    truth[5] = 0
    truth[30:40] = np.nan  # of one of two targets
    tracks = read_tracks(stored(tmp_path / "tracks.npz", truth=truth))
    assert score(ScoreTracks(tracks, 0.1), "Deer", "Jogging")["frames"].tolist() == [23, 19]
    truth[:30] = 0
    tracks = read_tracks(stored(tmp_path / "tracks.npz", truth=truth))
    with pytest.raises(InvalidInput, match="Deer must have a frame to predict a target in, got none"):
        score(ScoreTracks(tracks, 0.1), "Deer")


def test_the_box_that_was_given_is_no_prediction(tmp_path: Path) -> None:
    """Every member starts from the truth: were that frame counted, half of two frames would be right."""
    made = arrays(sequence=["Deer"], length=[2])
    truth = made["truth"][:2]
    members = np.stack([truth[:1].repeat(6, axis=0), truth[1:].repeat(6, axis=0) + 40])
    tracks = read_tracks(stored(tmp_path / "tracks.npz", **made | {"truth": truth, "members": members}))
    assert tracks.video("Deer").frames.tolist() == [1]
    assert score(ScoreTracks(tracks, 0.5), "Deer")["scores"][0] == pytest.approx(80)
    lone = made | {"length": [1], "truth": truth[:1], "members": members[:1]}
    with pytest.raises(InvalidInput, match="Deer must have a frame to predict a target in, got none"):
        read_tracks(stored(tmp_path / "tracks.npz", **lone)).video("Deer")


def changed(name: str, row: int, value: float) -> dict[str, Any]:
    array = arrays()[name]
    array[row, ..., 2] = value
    return {name: array}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"length": None}, "must hold sequence, length, truth, members, got no length"),
        ({"length": [30, 20, 41, 21]}, r"truth must have shape \[112, 4\], got \(111, 4\)"),
        ({"length": [30, 20, 61, 0]}, "lengths must be whole numbers from 1"),
        ({"length": [50.0, 41, 20, 0]}, "lengths must be whole numbers from 1"),
        ({"length": [111]}, "one per name"),
        ({"sequence": ["Deer", "Deer", "Car4", "Dog"]}, "names must be unique, got 1 repeats"),
        ({"members": np.zeros((111, 4))}, r"members must have shape \[F, M, 4\]"),
        ({"members": np.zeros((110, 6, 4))}, "members must have shape"),
        ({"truth": np.zeros((111, 5))}, r"truth must hold numbers \[F, 4\]"),
        ({"truth": np.full((111, 4), "1")}, r"truth must hold numbers \[F, 4\]"),
        (changed("members", 7, np.nan), "members must be finite numbers, got nan in row 7"),
        (changed("members", 7, np.inf), "members must be finite numbers, got inf in row 7"),
        (changed("truth", 8, np.inf), "truth must be finite numbers, got inf in row 8"),
        (changed("truth", 9, -1), "truth must have widths and heights of at least 0, got others in row 9"),
    ],
)
def test_files_that_are_no_tracks_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnreadableFile, match=rf"tracks\.npz.*{said}"):
        read_tracks(stored(tmp_path / "tracks.npz", **change))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="never unpickled"):
        read_tracks(stored(tmp_path / "tracks.npz", sequence=np.array([{}] * 4)))


def test_arguments_are_refused_by_name(tracks: Tracks) -> None:
    with pytest.raises(InvalidInput, match="gamma must be a share"):
        ScoreTracks(tracks, 1)
    with pytest.raises(InvalidInput, match=r"among the 3 units of the scorer, got 'Jogging.1'"):
        score(ScoreTracks(tracks, 0.1), "Deer", "Jogging.1")
