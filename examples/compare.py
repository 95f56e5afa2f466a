"""A table that the robots of this folder share: the same fresh episodes with four guards.

It measures; what is promised is the controller's certificate (docs/guarantees.md).
"""

import time
from dataclasses import replace

import pac_rl
from pac_core.evaluation import error_interval, format_table
from pac_rl.planning import MeanTubes, MemberTubes


def compare_guards(controller, *, steps, episodes, **columns):
    """Rows for no guard, the mean constraint, the worst member and the controller's own tubes.

    columns: from the episodes to a text
    """
    guards = {"none": None, "predicted mean": MeanTubes(), "worst member": MemberTubes()}
    head = ("guard", "broken", "98% interval", *columns, "fallback", "ms a decision")
    rows, seeds = [head], range(10**9, 10**9 + episodes)
    for name, tubes in (guards | {"tubes": controller.tubes}).items():
        begun = time.perf_counter()
        done = pac_rl.run_episodes(replace(controller, tubes=tubes), seeds, steps=steps)
        took = 1e3 * (time.perf_counter() - begun) / done.decisions.sum()
        low, high = error_interval(broken := int(done.errors.sum()), episodes)
        counts = (
            f"{broken} of {episodes}",
            f"{low:.1%} to {high:.1%}",
            *(each(done) for each in columns.values()),
        )
        rows.append((name, *counts, f"{done.fallbacks.sum() / done.decisions.sum():.1%}", f"{took:.2f}"))
    return format_table(rows)
