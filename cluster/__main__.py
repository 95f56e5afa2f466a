"""`python -m cluster run ...`: the whole program, where its entry points are not installed."""

from cluster.commands.logits import logits
from cluster.commands.run import run
from cluster.commands.submit import submit
from cluster.commands.tune import tune
from pac_core.cli import main

for command in (run, tune, submit, logits):
    main.add_command(command)
main()
