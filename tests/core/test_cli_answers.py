"""When `pac verify` and `pac evaluate` say no, and which units they never count."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pac_program import LEVEL, SPLIT, load, on_another_cpu, refused, run

from pac_core import LogitForecast, read_certificate
from pac_core.certificates.certificate import scores_digest, seal


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
    assert "units without ids cannot be compared" in result.output


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
    np.savez(certificate.with_name("a-stranger.scores.npz"), other=[1])
    certificate.with_name("b-damaged.scores.npz").write_bytes(b"PK")
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
    assert "NO  forecasts    the recomputed scores differ" in result.output


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_threshold_that_is_lower_by_a_millionth_is_void(logits: Path, dtype: type) -> None:
    """Sealed again, it follows neither from the scores nor from the forecasts, of whatever precision."""
    arrays = load(logits)
    np.savez(logits, **(arrays | {"logits": arrays["logits"].astype(dtype)}))
    certificate = logits.with_name("c.json")
    assert run("fit", logits, *LEVEL, *SPLIT, "--score", "paper", "--out", certificate).exit_code == 0
    document = json.loads(certificate.read_text())
    document["threshold"]["value"] -= 1e-6
    certificate.write_text(json.dumps(document | {"seal": seal(document)}))
    for data in (logits, certificate.with_name("c.scores.npz")):
        result = run("verify", certificate, data)
        assert result.exit_code == 1
        assert "NO  T" in result.output
        assert "smaller, hence void" in result.output


def test_verify_computes_the_scores_again_on_another_cpu(logits: Path, certificate: Path) -> None:
    """Float32 scores differ there in their last digits, and only so far as is proved."""
    answer = on_another_cpu("-m", "pac_core", "verify", certificate, logits)
    assert answer.returncode == 0, answer.stdout
    assert "the same up to rounding" in answer.stdout
    path = certificate.with_name("certificate.scores.npz")
    known = load(path)
    known["scores"][0] += 1e-4
    document = json.loads(certificate.read_text()) | {"scores": scores_digest(known["scores"])}
    np.savez(path, **known)
    certificate.write_text(json.dumps(document | {"seal": seal(document)}))
    answer = on_another_cpu("-m", "pac_core", "verify", certificate, logits)
    assert answer.returncode == 1
    assert "NO  forecasts    the recomputed scores differ" in answer.stdout
