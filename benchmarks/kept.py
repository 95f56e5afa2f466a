"""Ours and LBFGS with strong Wolfe in a process that keeps its freed memory; prints both best times.

Large temporaries are otherwise mapped, faulted in and unmapped at every call, which can be most of
torch's time; `benchmarks.core` starts this file with glibc's settings for it.
"""

from benchmarks import core, peers
from benchmarks.figures import take_turns
from pac_core import LogitForecast
from pac_core.scores import fit_temperature

logits, labels = core.draw(50_000, seed=1)
best = take_turns(
    {
        "ours": lambda: fit_temperature(LogitForecast(logits), labels),
        "strong Wolfe": lambda: peers.strong_wolfe_temperature(logits, labels),
    },
    rounds=4,
)
print(best["ours"], best["strong Wolfe"])
