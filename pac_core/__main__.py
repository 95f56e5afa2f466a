"""`python -m pac_core` is `pac`."""

from pac_core.cli.main import main

main(prog_name="pac")
