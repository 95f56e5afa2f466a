"""`python -m cluster run ...`: the commands of the engine where the program `pac` is not installed."""

from cluster.commands.run import main

main()
