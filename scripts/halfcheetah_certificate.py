"""A certificate for the half-cheetah's tubes: the default shape, at one level, with its ledger.

    python scripts/halfcheetah_certificate.py [--smoke-test] [--out folder]

Writes certificate.json and certificate.scores.npz (scores and ids of the calibration rollouts) into the
results folder; `pac verify certificate.json certificate.scores.npz` checks them. Choose the level before
any other script shows what other levels would give from the same calibration rollouts: a level
chosen afterwards needs new ones (`--seed`).
"""

from __future__ import annotations

import numpy as np

from pac_core import Certificate, Record, certify, evaluate, write_certificate
from pac_core.ledger import score_digest
from pac_core.tables import file_digest
from pac_rl.experiments import box_score
from pac_rl.reports import Report, run
from pac_rl.studies import Study


def main(study: Study, report: Report) -> Certificate:
    design, case = study.design, study.closed_loop("particles")
    made = certify(
        case.forecast,
        case.truth,
        design.level,
        ids=study.seeds,
        tune=design.tune,
        calibrate=design.calibrate,
        seed=design.seed,
        fit=lambda forecast, truth, level: box_score(case, level),  # of these tune units, fitted once
        ledger=report.folder / "pac-ledger",
        unit="rollout",
        train=f"{design.episodes:,} episodes of {design.env} with seeds of their own",
        train_ids=study.ensemble.trained_on,
        model=Record(repr(study.ensemble), digest=file_digest(study.folder / "ensemble.safetensors")),
        data=Record(study.source, design.units),
    )
    certificate = made.certificates[0]
    write_certificate(certificate, report.folder / "certificate.json")
    tuned = study.seeds[made.parts.tune.rows]
    np.savez(
        report.folder / "certificate.scores.npz",
        scores=made.scores,
        ids=made.ids,
        tune_ids=tuned,
        score=score_digest(made.score),
    )
    forecast, truth = case.part("test")
    found = evaluate(certificate.predictor.tube(forecast), truth, design.level)
    for remark in certificate.predictor.remarks:
        print(f"note: {remark}")
    print(f"\n{certificate.promise}\n{found.verdict}\ncertificate {report.folder / 'certificate.json'}")
    return certificate


if __name__ == "__main__":
    run(main, __doc__)
