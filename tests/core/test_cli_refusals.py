"""Mistakes get one sentence and exit code 2; nothing is opened, lost or written over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pac_program import LEVEL, SPLIT, refused, run


def test_a_second_look_is_refused_and_nothing_is_lost(logits: Path, certificate: Path) -> None:
    before = certificate.read_bytes()
    other = certificate.with_name("other.json")
    refused(
        run("fit", logits, "--epsilon", "0.2", "--delta", "0.01", *SPLIT, "--out", other),
        "calibrated on before",
    )
    refused(run("fit", logits, *LEVEL, *SPLIT, "--seed", "1", "--out", other), "calibrated on before")
    refused(run("fit", logits, *LEVEL, *SPLIT, "--out", certificate), "--out must be new")
    assert not other.exists()
    assert (
        run(
            "fit",
            logits,
            *LEVEL,
            *SPLIT,
            "--unit",
            "image",
            "--score",
            "paper",
            "--out",
            certificate,
            "--force",
        ).exit_code
        == 0
    )
    assert certificate.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epsilon", "0", "--delta", "0.1", *SPLIT], "epsilon must lie strictly between 0 and 1, got 0.0"),
        (["--epsilon", "0.01", "--delta", "1e-5", *SPLIT], "at least 1,146 are needed"),
        ([*LEVEL], "--tune and --calibrate must both be above 0"),
        ([*LEVEL, "--tune", "900", "--calibrate", "400"], "at most the 1,000 units, got 1,300"),
        ([*LEVEL, *SPLIT, "--ids", "names"], "has no array 'names'"),
        ([*LEVEL, *SPLIT, "--seed", "-1"], "seed must be a whole number"),
    ],
)
def test_mistakes_get_one_sentence_and_open_nothing(logits: Path, arguments: list[str], words: str) -> None:
    out = logits.parent / "new" / "c.json"
    refused(run("fit", logits, *arguments, "--out", out), words)
    assert not out.parent.exists()


def test_broken_files_get_one_sentence(logits: Path, certificate: Path, tmp_path: Path) -> None:
    refused(run("fit", tmp_path / "none.npz", *LEVEL), "does not exist")
    refused(run("evaluate", tmp_path / "none.json", logits), "cannot be read")
    certificate.write_text(certificate.read_text()[:200])
    refused(run("evaluate", certificate, logits), "is not the JSON it should be")


def test_a_certificate_serves_only_what_it_was_made_for(certificate: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "ten.npz", logits=np.zeros((5, 10)), labels=np.zeros(5, dtype=int))
    np.savez(tmp_path / "g.npz", mean=np.zeros((5, 2)), var=np.ones((5, 2)), truth=np.zeros((5, 2)))
    for command in ("sets", "evaluate"):
        refused(run(command, certificate, tmp_path / "ten.npz"), "must be of 6 labels", "got 10 labels")
        refused(run(command, certificate, tmp_path / "g.npz"), "must be of 6 labels", "got 2 dimensions")


def test_inputs_are_never_written_over(logits: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.scores.npz", scores=np.arange(400.0))
    before = (tmp_path / "c.scores.npz").read_bytes()
    forced = run("fit", tmp_path / "c.scores.npz", *LEVEL, "--out", tmp_path / "c.json", "--force")
    refused(forced, "--out must be none of the files that are read")
    over_ledger = run("fit", logits, *LEVEL, *SPLIT, "--out", tmp_path / "pac-ledger.json", "--force")
    refused(over_ledger, "nor the ledger")
    assert (tmp_path / "c.scores.npz").read_bytes() == before
    refused(run("fit", logits, *LEVEL, *SPLIT, "--out", tmp_path / "c.npz"), "--out must end in .json")


def test_linked_data_have_the_ledger_of_the_data(logits: Path, certificate: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.npz").symlink_to(logits)
    again = ["--epsilon", "0.2", "--delta", "0.01", *SPLIT, "--out", tmp_path / "elsewhere" / "c.json"]
    refused(run("fit", tmp_path / "elsewhere" / "link.npz", *again), "calibrated on before")


def test_training_ids_with_blanks_and_marks_are_the_same_ids(logits: Path, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("\ufeffimage-7 \n\n")
    known = ["--train-ids", tmp_path / "train.txt", "--out", tmp_path / "x.json"]
    refused(run("fit", logits, *LEVEL, *SPLIT, *known), "'image-7'")


def test_levels_that_too_many_failures_forbid_are_named_and_the_others_issued(tmp_path: Path) -> None:
    scores = np.arange(1000.0)
    scores[:100] = np.inf
    np.savez(tmp_path / "s.npz", scores=scores)
    levels = ["--epsilon", "0.05", "--epsilon", "0.2", "--delta", "0.01", "--out", tmp_path / "c.json"]
    result = run("fit", tmp_path / "s.npz", *levels)
    assert result.exit_code == 0, result.output
    assert "refused   epsilon=0.05, delta=0.01: more units failed than it allows errors" in result.output
    assert [path.name for path in tmp_path.glob("c-*.json")] == ["c-0.2-0.01.json"]
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "s.npz", scores=scores)
    refused(
        run(
            "fit",
            tmp_path / "other" / "s.npz",
            "--epsilon",
            "0.05",
            "--delta",
            "0.01",
            "--out",
            tmp_path / "other" / "c.json",
        ),
        "on new units: these have been looked at",
    )


def test_arguments_in_the_wrong_order_are_noticed(logits: Path, certificate: Path) -> None:
    refused(run("evaluate", logits, certificate), "the certificate (JSON) comes first and the data second")


def test_options_that_do_not_apply_are_refused(logits: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "x.json"]
    refused(run("fit", logits, *LEVEL, *SPLIT, "--shape", "box", *out), "for trajectories")
    refused(
        run("fit", logits, *LEVEL, "--tune", "0", "--calibrate", "400", *out),
        "must both be above 0",
    )


def test_a_fault_of_the_program_is_not_an_answer(monkeypatch: pytest.MonkeyPatch, logits: Path) -> None:
    monkeypatch.setattr("pac_core.fitting.read_dataset", lambda *a, **k: 1 / 0)
    result = run("fit", logits, *LEVEL, *SPLIT, "--out", logits.parent / "x.json")
    assert result.exit_code == 3
    assert "a fault of the program" in result.output


def test_fit_needs_the_truth(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", logits=np.zeros((10, 2)))
    refused(run("fit", tmp_path / "x.npz", *LEVEL, *SPLIT), "must hold the truth")
