"""The program as people use it: files in, sentences out, exit codes, and no traceback."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pac_core import LogitForecast, read_certificate
from pac_core.cli import main
from pac_core.documents import seal

LEVEL = ["--epsilon", "0.1", "--delta", "0.01"]
SPLIT = ["--tune", "200", "--calibrate", "400"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def refused(result: Result, *words: str) -> None:
    """One sentence, exit code 2, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


@pytest.fixture
def logits(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(1000, 6)) * 2).astype(np.float32)
    labels = (0.7 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
    path = tmp_path / "logits.npz"
    np.savez(path, logits=z, labels=labels, ids=[f"image-{i}" for i in range(1000)])
    return path


@pytest.fixture
def certificate(logits: Path) -> Path:
    path = logits.parent / "certificate.json"
    assert run("fit", logits, *LEVEL, *SPLIT, "--unit", "image", "--out", path).exit_code == 0
    return path


def test_min_n() -> None:
    assert "1,146 calibration units" in run("min-n", "--epsilon", "0.01", "--delta", "1e-5").output
    assert "up to 142" in run("min-n", "--epsilon", "0.01", "--delta", "1e-5", "--n", "20000").output
    refused(
        run("min-n", "--epsilon", "2", "--delta", "0.1"), "epsilon must lie strictly between 0 and 1, got 2.0"
    )
    refused(run("min-n", "--epsilon", "0.1", "--delta", "0.1", "--n", "20"), "at least 22 are needed")


def test_fit_evaluate_verify(logits: Path, certificate: Path) -> None:
    document = read_certificate(certificate)
    assert (document.unit, document.predictor.threshold.n, document.parts["tune"].n) == ("image", 400, 200)
    result = run("evaluate", certificate, logits)
    assert result.exit_code == 0
    assert "400 units; 600 tuned or calibrated on are left out" in result.output
    assert "error at most 0.1: not refuted by 400 test units" in result.output
    assert "prediction=wrong" in result.output
    before, after = re.search(r"\(ECE\) ([\d.]+) before, ([\d.]+) after", result.output).groups()  # type: ignore[union-attr]
    assert float(after) < float(before)
    for data in (certificate.with_name("certificate.scores.npz"), logits):
        result = run("verify", certificate, data)
        assert result.exit_code == 0, result.output
        assert "the certificate follows from these scores" in result.output
    assert "temperature" in result.output


def test_the_order_of_the_rows_changes_nothing(logits: Path, certificate: Path, tmp_path: Path) -> None:
    arrays = load(logits)
    order = np.random.default_rng(1).permutation(1000)
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "shuffled.npz", **{name: array[order] for name, array in arrays.items()})
    again = tmp_path / "other" / "certificate.json"
    assert run("fit", tmp_path / "other" / "shuffled.npz", *LEVEL, *SPLIT, "--out", again).exit_code == 0
    one, other = read_certificate(certificate), read_certificate(again)
    assert one.parts["calibrate"].digest == other.parts["calibrate"].digest
    assert one.predictor.threshold.value == pytest.approx(other.predictor.threshold.value, rel=1e-12)


def test_verify_says_no(certificate: Path) -> None:
    scores = certificate.with_name("certificate.scores.npz")
    arrays = load(scores)
    arrays["scores"] = arrays["scores"] + 1
    np.savez(scores, **arrays)
    result = run("verify", certificate, scores)
    assert result.exit_code == 1
    assert "NO  T" in result.output
    assert "the certificate does NOT follow" in result.output


def test_evaluate_says_refuted(certificate: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "shifted.npz", logits=rng.normal(size=(300, 6)) * 5, labels=rng.integers(0, 6, 300))
    result = run("evaluate", certificate, tmp_path / "shifted.npz")
    assert result.exit_code == 1
    assert "refuted by 300 test units" in result.output
    assert "the data must hold units never looked at" in result.output


def test_sets_as_lines_csv_and_npz(logits: Path, certificate: Path, tmp_path: Path) -> None:
    lines = list(csv.DictReader(run("sets", certificate, logits).output.splitlines()))
    assert len(lines) == 1000
    assert run("sets", certificate, logits, "--out", tmp_path / "sets.csv").exit_code == 0
    assert list(csv.DictReader((tmp_path / "sets.csv").read_text().splitlines())) == lines
    assert run("sets", certificate, logits, "--out", tmp_path / "sets.npz").exit_code == 0
    member = load(tmp_path / "sets.npz")["member"]
    for line, row in zip(lines, member, strict=True):
        assert line["labels"].split() == [str(label) for label in np.flatnonzero(row)]
        assert int(line["size"]) == row.sum()
    refused(
        run("sets", certificate, logits, "--out", tmp_path / "sets.txt"), "--out must end in .csv or .npz"
    )


def test_several_certificates_from_one_look(logits: Path, tmp_path: Path) -> None:
    out = tmp_path / "many" / "c.json"
    many = ["--epsilon", "0.1", "--epsilon", "0.2", "--delta", "0.01", "--delta", "0.1"]
    result = run("fit", logits, *many, *SPLIT, "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.parent.glob("c-*.json")) == [
        "c-0.1-0.01.json",
        "c-0.1-0.1.json",
        "c-0.2-0.01.json",
        "c-0.2-0.1.json",
    ]
    listed = run("ledger", logits.parent / "pac-ledger.json").output
    assert "400 units" in listed
    assert listed.count("epsilon=") == 4


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
        run("fit", logits, *LEVEL, *SPLIT, "--unit", "image", "--out", certificate, "--force").exit_code == 0
    )
    assert certificate.read_bytes() == before


def test_the_certificate_names_model_data_and_training(logits: Path, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"weights")
    (tmp_path / "train.txt").write_text("photo-1\nphoto-2\n")
    named = ["--model", "net", "--model-file", tmp_path / "weights.bin", "--train", "photos"]
    out = tmp_path / "named" / "c.json"
    known = ["--train-ids", tmp_path / "train.txt"]
    assert run("fit", logits, *LEVEL, *SPLIT, *named, *known, "--out", out).exit_code == 0
    document = read_certificate(out)
    assert (document.model.name, document.parts["train"].name, document.parts["train"].n) == (
        "net",
        "photos",
        2,
    )
    assert document.model.digest == hashlib.sha256(b"weights").hexdigest()
    assert document.data.digest == hashlib.sha256(logits.read_bytes()).hexdigest()
    assert (document.data.name, document.data.n) == ("logits.npz", 1000)
    (tmp_path / "train.txt").write_text("image-7\n")
    refused(
        run("fit", logits, *LEVEL, *SPLIT, *known, "--out", tmp_path / "x.json"), "'train' and", "'image-7'"
    )


def test_scores_alone_make_a_certificate_but_no_sets(logits: Path, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("\n".join(["score", *map(str, range(100))]) + "\n")
    out = tmp_path / "scores.json"
    assert run("fit", tmp_path / "s.csv", *LEVEL, "--out", out, "--score-name", "distance").exit_code == 0
    assert run("verify", out, tmp_path / "s.csv").exit_code == 0
    refused(run("sets", out, logits), "made from bare scores (distance)")


def test_tubes_from_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(900, 5, 2)).cumsum(axis=1)
    np.savez(tmp_path / "r.npz", mean=np.zeros_like(states), var=np.ones_like(states), truth=states)
    for shape in ("joint", "box", "features"):
        out = tmp_path / shape / "c.json"
        options: list[object] = ["--feature", "speed=1"] if shape == "features" else []
        options += ["--ledger", tmp_path / shape / "ledger.json", "--out", out]
        fitted = run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, "--shape", shape, *options)
        assert fitted.exit_code == 0, fitted.output
        assert "not refuted" in run("evaluate", out, tmp_path / "r.npz").output
        verified = run("verify", out, tmp_path / "r.npz")
        assert verified.exit_code == 0, verified.output
        assert run("sets", out, tmp_path / "r.npz", "--out", tmp_path / shape / "tubes.npz").exit_code == 0
        tubes = load(tmp_path / shape / "tubes.npz")
        assert tubes["upper"].shape[:2] == (900, 5)
        assert ("names" in tubes) is (shape == "features")
    refused(run("sets", out, tmp_path / "r.npz"), "write them with --out file.npz")
    bad = ["--shape", "features", "--feature", "speed=7", "--out", tmp_path / "x.json"]
    refused(run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, *bad), "a dimension below 2, got 'speed=7'")
    for lonely in (["--shape", "features"], ["--feature", "speed=1"], ["--shape", "max", "--feature", "s=0"]):
        alone = run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, *lonely, "--out", tmp_path / "x.json")
        refused(alone, "--shape features and --feature NAME=DIMENSION go together")
    cold = run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, "--no-temperature", "--out", tmp_path / "x.json")
    refused(cold, "--no-temperature is for labels and vectors")
    banana = run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, "--shape", "banana", "--out", tmp_path / "x.json")
    refused(banana, "shape must be one of joint, max, box, features, got 'banana'")


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


def test_units_looked_at_are_never_tested_on(logits: Path, certificate: Path, tmp_path: Path) -> None:
    """Part of the file in another format: the scores file beside the certificate knows its units."""
    arrays = load(logits)
    known = load(certificate.with_name("certificate.scores.npz"))
    used = np.isin(arrays["ids"][:500], np.concatenate([known["ids"], known["tune_ids"]])).sum()
    np.savez_compressed(tmp_path / "half.npz", **{name: array[:500] for name, array in arrays.items()})
    result = run("evaluate", certificate, tmp_path / "half.npz")
    assert f"{500 - used} units; {used} tuned or calibrated on are left out" in result.output
    only = np.isin(arrays["ids"], known["ids"])
    np.savez(tmp_path / "only.npz", **{name: array[only] for name, array in arrays.items()})
    refused(run("evaluate", certificate, tmp_path / "only.npz"), "no units are left to test")


def test_another_certificates_scores_file_is_not_believed(
    logits: Path, certificate: Path, tmp_path: Path
) -> None:
    path = certificate.with_name("certificate.scores.npz")
    np.savez(path, **(load(path) | {"ids": np.arange(400)}))
    np.savez_compressed(tmp_path / "half.npz", **{name: array[:500] for name, array in load(logits).items()})
    output = run("evaluate", certificate, tmp_path / "half.npz").output
    assert "which units were tuned or calibrated on is not known" in output


def test_inputs_are_never_written_over(logits: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.scores.npz", scores=np.arange(400.0))
    before = (tmp_path / "c.scores.npz").read_bytes()
    forced = run("fit", tmp_path / "c.scores.npz", *LEVEL, "--out", tmp_path / "c.json", "--force")
    refused(forced, "--out must be none of the files that are read")
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


def test_the_name_of_the_ids_is_remembered(logits: Path, tmp_path: Path) -> None:
    arrays = load(logits)
    arrays["files"] = arrays.pop("ids")
    np.savez(tmp_path / "files.npz", **arrays)
    out = tmp_path / "c" / "c.json"
    assert run("fit", tmp_path / "files.npz", *LEVEL, *SPLIT, "--ids", "files", "--out", out).exit_code == 0
    assert "600 tuned or calibrated on are left out" in run("evaluate", out, tmp_path / "files.npz").output
    assert run("verify", out, tmp_path / "files.npz").exit_code == 0


def test_rows_by_any_array_of_the_file(logits: Path, certificate: Path, tmp_path: Path) -> None:
    arrays = load(logits) | {"camera": np.where(np.arange(1000) % 2, "left", "right")}
    np.savez(tmp_path / "cameras.npz", **arrays)
    output = run("evaluate", certificate, tmp_path / "cameras.npz", "--by", "camera").output
    assert "camera=left" in output
    assert "camera=right" in output
    refused(run("evaluate", certificate, tmp_path / "cameras.npz", "--by", "lens"), "got 'lens'")


def test_npy_logits_with_labels(logits: Path, tmp_path: Path) -> None:
    arrays = load(logits)
    np.save(tmp_path / "z.npy", arrays["logits"])
    np.save(tmp_path / "y.npy", arrays["labels"])
    out = ["--labels", tmp_path / "y.npy", "--out", tmp_path / "npy" / "c.json"]
    result = run("fit", tmp_path / "z.npy", *LEVEL, *SPLIT, *out)
    assert result.exit_code == 0, result.output
    assert "the file names no units (ids)" in result.output
    certificate = tmp_path / "npy" / "c.json"
    for command in ("evaluate", "verify"):
        assert run(command, certificate, tmp_path / "z.npy", "--labels", tmp_path / "y.npy").exit_code == 0
    refused(run("fit", tmp_path / "z.npy", *LEVEL, *SPLIT, "--out", tmp_path / "x.json"), "or give --labels")
    other = run("evaluate", certificate, logits).output  # the same units, now with names
    assert "without ids units cannot be compared" in other


def test_scores_of_another_score_do_not_verify(certificate: Path) -> None:
    path = certificate.with_name("certificate.scores.npz")
    np.savez(path, **(load(path) | {"score": "0" * 64}))
    result = run("verify", certificate, path)
    assert result.exit_code == 1
    assert "NO  score" in result.output


def test_verify_refits_the_temperature(logits: Path, certificate: Path) -> None:
    """A certificate with another temperature, sealed and with scores to match, is found out."""
    document = json.loads(certificate.read_text())
    document["score"]["preparations"][0]["tau"] *= 1.01
    certificate.write_text(json.dumps(document | {"seal": seal(document)}))
    result = run("verify", certificate, logits)
    assert result.exit_code == 1
    assert "NO  temperature" in result.output


def test_verify_notices_changed_labels_that_leave_t_alone(
    logits: Path, certificate: Path, tmp_path: Path
) -> None:
    """One calibration label is changed for another below T: n, k and T are as stated, the score is not."""
    arrays = load(logits)
    document = read_certificate(certificate)
    known = load(certificate.with_name("certificate.scores.npz"))["ids"]
    sets = document.predictor.sets(LogitForecast(arrays["logits"])).member
    row = next(
        i
        for i in np.flatnonzero(np.isin(arrays["ids"], known))
        if sets[i].sum() > 1 and sets[i, arrays["labels"][i]]
    )
    arrays["labels"][row] = next(k for k in np.flatnonzero(sets[row]) if k != arrays["labels"][row])
    np.savez(tmp_path / "changed.npz", **arrays)
    result = run("verify", certificate, tmp_path / "changed.npz")
    assert result.exit_code == 1
    assert "ok  T" in result.output
    assert "NO  scores       computed again, the scores are others" in result.output


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


def test_nearly_equal_levels_get_files_of_their_own(logits: Path, tmp_path: Path) -> None:
    levels = ["--epsilon", "0.1", "--epsilon", "0.10000001", "--delta", "0.01"]
    assert run("fit", logits, *levels, *SPLIT, "--out", tmp_path / "n" / "c.json").exit_code == 0
    assert len(list((tmp_path / "n").glob("c-*.json"))) == 2


def test_a_fault_of_the_program_is_not_an_answer(monkeypatch: pytest.MonkeyPatch, logits: Path) -> None:
    monkeypatch.setattr("pac_core.fitting.read_dataset", lambda *a, **k: 1 / 0)
    result = run("fit", logits, *LEVEL, *SPLIT, "--out", logits.parent / "x.json")
    assert result.exit_code == 3
    assert "a fault of the program" in result.output


def test_fit_needs_the_truth(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", logits=np.zeros((10, 2)))
    refused(run("fit", tmp_path / "x.npz", *LEVEL, *SPLIT), "must hold the truth")


def test_plot_draws_two_figures(tmp_path: Path) -> None:
    result = run("plot", "bounds", "--out", tmp_path / "figures")
    assert result.exit_code == 0, result.output
    for name in ("bounds_vc_direct.png", "bounds_direct_errors.png"):
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_help_has_examples_and_no_promise_without_words() -> None:
    assert "pac fit logits.npz --epsilon 0.05" in run("--help").output
    assert "logits or probabilities [N, K], labels [N]" in run("fit", "--help").output


def test_a_reader_that_has_seen_enough_is_no_refusal(logits: Path, certificate: Path) -> None:
    """`pac sets ... | head -1`, with more lines than a pipe holds."""
    command = f"{sys.executable} -m pac_core sets {certificate} {logits} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "id,size,labels\n", "")


def test_it_starts_as_a_program_and_imports_no_more_than_it_needs() -> None:
    """Neither torch, matplotlib, pyarrow nor the slow half of scipy comes in with the package."""
    code = (
        "import json, sys, pac_core.cli; "
        "print(json.dumps([m for m in ('torch', 'matplotlib', 'pyarrow', 'scipy.stats', 'scipy.optimize')"
        " if m in sys.modules]))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []
