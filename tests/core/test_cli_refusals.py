"""Mistakes get one sentence and exit code 2; nothing is opened, lost or written over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pac_program import LEVEL, SPLIT, refused, run

from pac_core.certificates.certificate import read_json, seal


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
        ([*SPLIT], "--epsilon and --delta must each be given, or --level, got neither"),
        (["--epsilon", "0.1", *SPLIT], "--epsilon and --delta go together, got only one of them"),
        ([*LEVEL, "--level", "0.2,0.1", *SPLIT], "by --level, or by --epsilon and --delta, got both"),
        (
            ["--level", "0.2,0.1", "--delta", "0.1", *SPLIT],
            "by --level, or by --epsilon and --delta, got both",
        ),
        (["--level", "0.2", *SPLIT], "separated by a comma, as in 0.02,1e-5, got '0.2'"),
        (["--level", "0.2,0.1,0.1", *SPLIT], "separated by a comma, as in 0.02,1e-5, got '0.2,0.1,0.1'"),
        (["--level", "2,0.1", *SPLIT], "epsilon must lie strictly between 0 and 1, got 2.0"),
        ([*LEVEL, *SPLIT, "--logits", "z"], "which has ids, labels, logits, got 'z'"),
        (
            [*LEVEL, *SPLIT, "--labels", "y"],
            "which has ids, labels, logits, got 'y' (nor is there such a file",
        ),
        ([*LEVEL], "--tune and --calibrate must both be above 0"),
        ([*LEVEL, "--tune", "900", "--calibrate", "400"], "at most 1,000 units, got 1,300"),
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
    refused(forced, "--out must not be a file that is read")
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
    assert "refused   epsilon=0.05, delta=0.01: more units failed than errors are allowed" in result.output
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
    monkeypatch.setattr("pac_core.cli.fit.read_dataset", lambda *a, **k: 1 / 0)
    result = run("fit", logits, *LEVEL, *SPLIT, "--out", logits.parent / "x.json")
    assert result.exit_code == 3
    assert "a bug in the program" in result.output


def test_fit_needs_the_truth(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", logits=np.zeros((10, 2)))
    refused(run("fit", tmp_path / "x.npz", *LEVEL, *SPLIT), "must hold the truth")


def shell(command: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `pac` in a shell."""
    program = command.replace("pac ", f"{sys.executable} -m pac_core ", 1)
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    return done.returncode, done.stdout, done.stderr


def test_a_closed_standard_output_is_refused_before_a_unit_is_spent(logits: Path) -> None:
    fit = f"pac fit {logits} {' '.join((*LEVEL, *SPLIT))} --out {logits.parent}/c.json >&-"
    said = "Error: standard output is closed: redirect it to a file or to /dev/null\n"
    assert shell(fit) == (2, "", said)
    assert [path.name for path in logits.parent.iterdir()] == ["logits.npz"]


def test_a_full_standard_output_is_named(logits: Path, certificate: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    said = "Error: standard output: No space left on device\n"
    for command in ("pac min-n --epsilon 0.1 --delta 0.1", f"pac sets {certificate} {logits}"):
        assert shell(f"{command} > /dev/full") == (2, "", said)


def test_an_answer_that_nobody_heard_is_no_yes(logits: Path, certificate: Path) -> None:
    """A certificate that does not follow, into a pipe that nobody reads: 0 would say that it does."""
    other = certificate.with_name("scores.npz")
    np.savez(other, scores=np.arange(400.0))
    assert run("verify", certificate, other).exit_code == 1
    code, _, said = shell(f"pac verify {certificate} {other} | sleep 0; exit ${{PIPESTATUS[0]}}")
    assert code in (1, 141), said


def test_ids_that_the_terminal_cannot_show_are_escaped(tmp_path: Path, certificate: Path) -> None:
    new = tmp_path / "new.npz"
    np.savez(new, logits=np.zeros((2, 6)), ids=["\u00e4", "\u4e16"])
    code, output, said = shell(f"pac sets {certificate} {new}", PYTHONIOENCODING="ascii")
    assert (code, said) == (0, "")
    assert [line.split(",")[0] for line in output.splitlines()] == ["id", "\\xe4", "\\u4e16"]


def test_a_circle_of_links_is_no_file(tmp_path: Path, logits: Path, certificate: Path) -> None:
    loop, out = tmp_path / "loop.npz", tmp_path / "new.json"
    loop.symlink_to(loop)
    for command in (
        ("fit", loop, *LEVEL, *SPLIT, "--out", out),
        ("fit", logits, *LEVEL, *SPLIT, "--out", out, "--ledger", loop),
        ("evaluate", certificate, loop),
        ("sets", certificate, loop),
        ("verify", certificate, loop),
    ):
        refused(run(*command), "loop.npz")
    assert loop.is_symlink()
    assert not out.exists()


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([{"tau": [1.0, 2.0], "n": 200}], "tau must be one number for labels, got shape (2,)"),
        ([{"tau": [1.0], "n": 200}], "tau must be one number for labels, got shape (1,)"),
        ([{"accumulated": True}], "accumulated variances are of trajectories, not of labels"),
    ],
)
def test_a_certificate_whose_score_cannot_be_of_its_forecasts_is_refused(
    logits: Path, certificate: Path, steps: list[object], said: str
) -> None:
    document = read_json(certificate)
    document["score"]["preparations"] = steps
    certificate.write_text(json.dumps(document | {"seal": seal(document)}))
    for command in ("sets", "evaluate", "verify"):
        refused(run(command, certificate, logits), said)
