"""The report: one self-contained page from run folders, see `write_report`; tasks register what they show."""

from pac_core.report.charts import (
    Series,
    at_least,
    at_most,
    folded,
    heat_map,
    interval_chart,
    join,
    line_chart,
    number_text,
    paragraph,
    share_text,
    table,
)
from pac_core.report.page import build_page, write_report
from pac_core.report.sections import (
    certificate_headlines,
    coverage_sections,
    descent_sections,
    player,
    say_units,
    shorten,
    show_runs,
    sweep_sections,
    tube_sections,
)
from pac_core.report.stored import Chapter, Headline, Section, StoredRun

__all__ = [
    "Chapter",
    "Headline",
    "Section",
    "Series",
    "StoredRun",
    "at_least",
    "at_most",
    "build_page",
    "certificate_headlines",
    "coverage_sections",
    "descent_sections",
    "folded",
    "heat_map",
    "interval_chart",
    "join",
    "line_chart",
    "number_text",
    "paragraph",
    "player",
    "say_units",
    "share_text",
    "shorten",
    "show_runs",
    "sweep_sections",
    "table",
    "tube_sections",
    "write_report",
]
