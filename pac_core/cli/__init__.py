"""The program `pac`."""

from pac_core.cli.main import main
from pac_core.cli.options import (
    FILE,
    LEDGER,
    LedgerName,
    PluginGroup,
    batch_option,
    broken_option,
    ledger_beside,
    level_options,
    preprocessing_options,
    read_lines,
    refuse_existing,
    refuse_unwritable,
    say,
    say_cost,
    shape_options,
)

__all__ = [
    "FILE",
    "LEDGER",
    "LedgerName",
    "PluginGroup",
    "batch_option",
    "broken_option",
    "ledger_beside",
    "level_options",
    "main",
    "preprocessing_options",
    "read_lines",
    "refuse_existing",
    "refuse_unwritable",
    "say",
    "say_cost",
    "shape_options",
]
