"""From rollouts to a certificate: tubes for a half-cheetah, in about two minutes on two cores.

    python scripts/demo_halfcheetah.py [--out demo_output]

Trains a small probabilistic ensemble on rollouts of the policy that comes with pac_rl, rolls out
thousands of real trajectories in MuJoCo, tunes and calibrates tubes for the next 20 steps, certifies
them, and measures them on rollouts never looked at before. Run again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import halfcheetah_certificate
import halfcheetah_shapes

from pac_core import PACError
from pac_rl import Design, Settings
from pac_rl.reports import Report
from pac_rl.studies import Study

DESIGN = Design(
    tune=1000,
    calibrate=2000,
    test=2000,
    epsilon=0.02,
    delta=1e-3,
    episodes=600,
    settings=Settings(hidden=128, epochs=5, batch=256),
)


def main(design: Design, out: Path) -> None:
    study, report = Study(design, out), Report(out / "results")
    print(f"1 train      {design.episodes:,} episodes of the policy, half of them with more noise")
    study.ensemble  # noqa: B018
    print(f"2 roll out   {design.units:,} units of {design.horizon} steps, each from its own reset")
    study.rollouts  # noqa: B018
    print(f"3 certify    tune on {design.tune:,}, calibrate on {design.calibrate:,}, test on {design.test:,}")
    halfcheetah_certificate.main(study, report)
    print("\n4 compare    with the paper's tube: same ensemble, same rollouts; one-step variances there")
    rows = halfcheetah_shapes.compare(
        study, report, "closed", study.closed_loop("one-step"), study.closed_loop("particles")
    )
    ours = next(row for row in rows if row["shape"] == "box")
    print(f"\npromised error   at most {design.epsilon:.2%}, with confidence 1 - {design.delta:g}")
    print(f"measured error   {ours['error']:.2%} of {design.test:,} rollouts")
    smaller = f"{ours['times smaller']:.0f} times smaller than the paper's shape"
    print(f"tube size        {ours['size']:.3g}, {smaller}")
    print(f"\nfigures          {report.folder / 'shapes_closed_steps.png'}   size at each step, by shape")
    print(f"                 {report.folder / 'shapes_closed_tubes.png'}   tubes around real trajectories")
    pac = os.path.relpath(Path(sys.executable).with_name("pac"))
    folder = report.folder
    print(f"next             {pac} verify {folder / 'certificate.json'} {folder / 'certificate.scores.npz'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder for the results")
    parser.add_argument("--smoke-test", action="store_true", help="a few hundred rollouts, in seconds")
    args = parser.parse_args()
    try:
        main(Design.smoke() if args.smoke_test else DESIGN, args.out)
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")
