"""`python -m pac_core` is `pac`, also where it is shipped and not installed."""

from pac_core.cli.main import main

main(prog_name="pac")
