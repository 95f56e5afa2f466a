"""The program as people use it: files in, sentences out, exit codes."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pac_program import LEVEL, SPLIT, load, refused, run

from pac_core import GaussianForecast, read_certificate
from pac_core.cli.sets import write_regions
from pac_core.sets import gaussian_sets


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
    book = logits.with_name("pac-ledger")
    told = run("verify", certificate, logits, "--ledger", book)
    assert told.exit_code == 0, told.output
    assert "ok  ledger       Its ledger holds 1 attempt or look" in told.output
    assert "Its ledger holds 1 attempt or look: no other is known." in document.promise
    refused(run("verify", certificate), "DATA must be given: the scores or forecasts")
    refused(run("verify", certificate, logits, "--ledger", logits), "a ledger must be a folder")
    other = certificate.with_name("another.json")
    run("ledger", other, "--budget", "0.5")
    unknown = run("verify", certificate, logits, "--ledger", other)
    assert unknown.exit_code == 1
    assert "NO  ledger" in unknown.output
    assert "temperature" in result.output


def test_the_ledger_of_another_score_bears_nothing_out(logits: Path, certificate: Path) -> None:
    """A look hidden in a second ledger is no look of the first, at the same units and level."""
    out, second = certificate.with_name("plain.json"), certificate.with_name("second.json")
    options = [*LEVEL, *SPLIT, "--score", "plain", "--ledger", second, "--out", out]
    assert run("fit", logits, *options).exit_code == 0
    assert run("verify", out, logits, "--ledger", second).exit_code == 0
    answer = run("verify", out, logits, "--ledger", logits.with_name("pac-ledger"))
    assert answer.exit_code == 1
    assert "NO  ledger" in answer.output


def test_the_order_of_the_rows_changes_nothing(logits: Path, certificate: Path, tmp_path: Path) -> None:
    arrays = load(logits)
    order = np.random.default_rng(1).permutation(1000)
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "shuffled.npz", **{name: array[order] for name, array in arrays.items()})
    again = tmp_path / "other" / "certificate.json"
    options = [*LEVEL, *SPLIT, "--score", "paper", "--out", again]
    assert run("fit", tmp_path / "other" / "shuffled.npz", *options).exit_code == 0
    one, other = read_certificate(certificate), read_certificate(again)
    assert one.parts["calibrate"].digest == other.parts["calibrate"].digest
    assert one.predictor.threshold.value == pytest.approx(other.predictor.threshold.value, rel=1e-12)


def test_sets_as_lines_csv_and_npz(logits: Path, certificate: Path, tmp_path: Path) -> None:
    lines = list(csv.DictReader(run("sets", certificate, logits).output.splitlines()))
    assert len(lines) == 1000
    assert run("sets", certificate, logits, "--out", tmp_path / "sets.csv").exit_code == 0
    assert list(csv.DictReader((tmp_path / "sets.csv").read_text().splitlines())) == lines
    assert run("sets", certificate, logits, "--out", tmp_path / "sets.npz").exit_code == 0
    member = load(tmp_path / "sets.npz")["member"]
    for line, row, z in zip(lines, member, load(logits)["logits"], strict=True):
        ranked = sorted(np.flatnonzero(row), key=lambda label: -z[label])  # the most likely first
        assert line["labels"].split() == [str(label) for label in ranked]
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
    listed = run("ledger", logits.parent / "pac-ledger").output
    assert "400 units" in listed
    assert listed.count("epsilon=") == 4


def test_levels_may_be_given_as_pairs(logits: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs" / "c.json"
    pairs = ["--level", "0.2,0.01", "--level", "0.1,0.05", "--level", "0.2,1e-2"]
    result = run("fit", logits, *pairs, *SPLIT, "--out", out)
    assert result.exit_code == 0, result.output
    names = [path.name for path in out.parent.glob("c-*.json")]
    assert sorted(names) == ["c-0.1-0.05.json", "c-0.2-0.01.json"]
    assert "1,146 calibration units" in run("min-n", "--level", "0.01,1e-5").output
    refused(run("min-n", "--level", "0.1,0.1", "--level", "0.2,0.1"), "one level must be given, got 2")


def test_logits_and_labels_may_have_other_names(logits: Path, certificate: Path, tmp_path: Path) -> None:
    arrays = load(logits)
    other = tmp_path / "other.npz"
    np.savez(other, z=arrays["logits"], y=arrays["labels"], ids=arrays["ids"], scores=np.zeros(1000))
    named = ["--logits", "z", "--labels", "y"]
    book, out = tmp_path / "other.json", tmp_path / "o.json"
    asked = ["fit", other, *LEVEL, *SPLIT, "--score", "paper", "--ledger", book, "--out", out]
    result = run(*asked, *named)
    assert result.exit_code == 0, result.output
    found, known = (read_certificate(path).predictor for path in (out, certificate))
    assert (found.threshold, found.score.to_json()) == (known.threshold, known.score.to_json())
    assert "the certificate follows" in run("verify", out, other, *named).output
    assert run("evaluate", out, other, *named).output == run("evaluate", certificate, logits).output
    assert run("sets", out, other, "--logits", "z").output == run("sets", certificate, logits).output


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


def test_sets_far_from_zero_are_written_as_they_are(tmp_path: Path) -> None:
    """Nine digits of 1.7e9 are steps of ten: rounded to them, sets missed a quarter of the truths."""
    rng = np.random.default_rng(0)
    mean = 1.7e9 + 1e6 * rng.random((1500, 1))
    var, truth = np.full_like(mean, 4.0), mean + 2 * rng.normal(size=mean.shape)
    np.savez(tmp_path / "far.npz", mean=mean, var=var, truth=truth, ids=np.arange(1500))
    out = tmp_path / "c.json"
    level = ["--epsilon", "0.05", "--delta", "0.01"]
    assert run("fit", tmp_path / "far.npz", *level, *SPLIT, "--out", out).exit_code == 0
    assert run("sets", out, tmp_path / "far.npz", "--out", tmp_path / "sets.csv").exit_code == 0
    assert run("sets", out, tmp_path / "far.npz", "--out", tmp_path / "sets.npz").exit_code == 0
    lines = list(csv.DictReader((tmp_path / "sets.csv").read_text().splitlines()))
    assert lines == list(csv.DictReader(run("sets", out, tmp_path / "far.npz").output.splitlines()))
    lower, upper = (np.array([[float(line[end])] for line in lines]) for end in ("lower_0", "upper_0"))
    stored = load(tmp_path / "sets.npz")
    sets = read_certificate(out).predictor.sets(GaussianForecast(mean, var))
    for one, two, three in zip((lower, upper), (stored["lower"], stored["upper"]), sets.box(), strict=True):
        assert (one == two).all()
        assert (two == three).all()
    assert ((lower <= truth) & (truth <= upper) == sets.contains(truth)[:, None]).all()


@given(
    center=st.floats(-1e300, 1e300),
    deviation=st.floats(1e-150, 1e150),
    limit=st.floats(-500, 500),
    share=st.floats(-1, 1),
)
@example(center=5e-324, deviation=1e-150, limit=1.0, share=1.0)
@example(center=1.7e9, deviation=1e-9, limit=0.0, share=-1.0)  # narrower than a unit in the last place
def test_a_set_read_back_from_text_contains_the_set_in_memory(
    center: float, deviation: float, limit: float, share: float
) -> None:
    mean, var = np.array([[center]]), np.array([[deviation**2]])
    limit += float(np.log(deviation))  # about the size at which the set is empty or not
    sets = gaussian_sets(GaussianForecast(mean, var), limit)
    with tempfile.TemporaryDirectory() as folder:
        write_regions(["one"], sets, Path(folder) / "sets.csv")
        (line,) = csv.DictReader((Path(folder) / "sets.csv").read_text().splitlines())
    lower, upper = float(line["lower_0"]), float(line["upper_0"])
    (low,), (high,) = (end.ravel() for end in sets.box())
    if sets.empty.item():
        assert np.isnan([lower, upper, low, high]).all()
        return
    assert lower <= low <= high <= upper
    assert float(line["size"]) >= sets.size().item()
    truth = mean + share * (high - low) / 2
    assert lower <= truth.item() <= upper or not sets.contains(truth).item()


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
        options += ["--ledger", tmp_path / shape / "ledger", "--out", out]
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
    drawn = np.random.default_rng(0).normal(size=(900, 5, 2))
    np.savez(tmp_path / "wide.npz", mean=0 * drawn, var=np.exp(drawn[::-1]), truth=drawn)
    said = run("fit", tmp_path / "wide.npz", *LEVEL, *SPLIT, "--out", tmp_path / "wide.json").output
    assert "this tube ignores the model's variance (power 0)" in said
    assert "wider than the states vary: the mean half-width of 2 of 2 numbers" in said
    bad = ["--shape", "features", "--feature", "speed=7", "--out", tmp_path / "x.json"]
    refused(run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, *bad), "a dimension below 2, got 'speed=7'")
    for lonely in (["--shape", "features"], ["--feature", "speed=1"], ["--shape", "max", "--feature", "s=0"]):
        alone = run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, *lonely, "--out", tmp_path / "x.json")
        refused(alone, "--shape features and --feature NAME=DIMENSION go together")
    cold = run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, "--no-temperature", "--out", tmp_path / "x.json")
    refused(cold, "--no-temperature is for labels and vectors")
    banana = run("fit", tmp_path / "r.npz", *LEVEL, *SPLIT, "--shape", "banana", "--out", tmp_path / "x.json")
    refused(banana, "shape must be one of joint, max, box, features, got 'banana'")


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
    assert "the file has no ids" in result.output
    certificate = tmp_path / "npy" / "c.json"
    for command in ("evaluate", "verify"):
        assert run(command, certificate, tmp_path / "z.npy", "--labels", tmp_path / "y.npy").exit_code == 0
    refused(run("fit", tmp_path / "z.npy", *LEVEL, *SPLIT, "--out", tmp_path / "x.json"), "or give --labels")
    other = run("evaluate", certificate, logits).output  # the same units, now with names
    assert "units without ids cannot be compared" in other


def test_nearly_equal_levels_get_files_of_their_own(logits: Path, tmp_path: Path) -> None:
    levels = ["--epsilon", "0.1", "--epsilon", "0.10000001", "--delta", "0.01"]
    assert run("fit", logits, *levels, *SPLIT, "--out", tmp_path / "n" / "c.json").exit_code == 0
    assert len(list((tmp_path / "n").glob("c-*.json"))) == 2


def test_help_has_examples_and_no_promise_without_words() -> None:
    assert "pac fit logits.npz --epsilon 0.05" in run("--help").output
    assert "logits or probabilities [N, K], labels [N]" in run("fit", "--help").output


def test_a_reader_that_has_seen_enough_gets_no_words(logits: Path, certificate: Path) -> None:
    """`pac sets ... | head -1`, with more lines than a pipe holds."""
    command = f"{sys.executable} -m pac_core sets {certificate} {logits} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (141, "id,size,labels\n", "")


def test_it_starts_as_a_program_and_imports_no_more_than_it_needs() -> None:
    """Neither torch, matplotlib, pyarrow nor the slow half of scipy comes in with the package."""
    code = (
        "import json, sys, pac_core.cli.main; "
        "print(json.dumps([m for m in ('torch', 'matplotlib', 'pyarrow', 'scipy.stats', 'scipy.optimize')"
        " if m in sys.modules]))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []
