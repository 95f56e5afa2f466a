"""The page of finished runs: what was promised, whether it held, and what there is to see; one HTML file.

A task has a page function, found by the entry points ``pac_sets.pages`` under its name: from its runs to a
chapter. Without one, a run shows what its certificates and forecasts say (`show_runs`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, TypeAlias

from markupsafe import Markup

from pac_core import plugins
from pac_core.arrays import round_up
from pac_core.bounds import add_deltas
from pac_core.certificates.certificate import FORMAT as CERTIFICATE
from pac_core.certificates.certificate import read_certificate, read_json, seal
from pac_core.certificates.descent import read_descent
from pac_core.certificates.ledger import Opening, read_family, read_ledger, read_notes
from pac_core.errors import BadCertificate, InvalidInput
from pac_core.files import whole_file
from pac_core.report.charts import folded, paragraph, table
from pac_core.report.sections import show_certificate, show_descent, show_monitor, show_runs
from pac_core.report.stored import Chapter, Section, StoredRun
from pac_core.runs.folders import RunFolder
from pac_core.safety.monitor import SCORE_MONITOR

Page: TypeAlias = Callable[[Sequence[StoredRun]], Chapter]


def find_runs(places: Sequence[str]) -> list[str]:
    """The run folders among these places and, where one is none itself, below it."""
    found: list[str] = []
    for place in places:
        folder = RunFolder(place)
        if folder.has("run.json"):
            found.append(place)
            continue
        paths = sorted(folder.fs.glob(f"{folder.root}/**/run.json"))
        inner = [str(path).removesuffix("/run.json") for path in paths]
        if not inner:
            raise InvalidInput(f"RUN must be a run folder, or hold some below it, got {place}")
        found += inner if folder.local else [f"{place.rstrip('/')}{one[len(folder.root) :]}" for one in inner]
    return list(dict.fromkeys(found))


def build_page(runs: Sequence[StoredRun], *, more: Sequence[Chapter] = (), title: str = "") -> str:
    """The page of these runs, and more chapters, as HTML that needs nothing else."""
    from jinja2 import Environment

    tasks: dict[str, list[StoredRun]] = {}
    for run in runs:
        tasks.setdefault(run.name, []).append(run)
    chapters = [*(_page_of(name)(some) for name, some in tasks.items()), *more]
    ledgers = list(dict.fromkeys(place for run in runs if (place := run.folder.ledger())))
    ends = [ledger_section(ledger) for ledger in ledgers] + [provenance_section(runs)] * bool(runs)
    here = files("pac_core.report")
    parts = {
        name: here.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    }
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(parts["page.html"])
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return page.render(
        title=title or "What was promised, and did it hold?",
        headlines=[head for chapter in chapters for head in chapter.headlines],
        chapters=[*(one for one in (*chapters, Chapter("Evidence", (), ends)) if one.sections)],
        css=Markup(parts["page.css"]),
        js=Markup(parts["page.js"]),
        made=made,
    )


def _page_of(name: str) -> Page:
    page: Page = plugins.load("pages", name) if name in plugins.names("pages") else show_runs
    return page


def ledger_section(ledger: str) -> Section:
    """What was asked of a ledger, in order, and what each look cost."""
    family, spent, rows = read_family(ledger), 0.0, []
    for number, opening in enumerate(read_ledger(ledger), 1):
        spent = add_deltas((spent, opening.cost))
        row = {"look": number, "for": _say_menu(opening), "units": opening.n, "cost": opening.cost}
        rows.append(row | {"all so far": spent})
    notes = [
        {"time": note.time, "note": note.kind, "facts": "; ".join(_facts(note.facts))}
        for note in read_notes(ledger)
    ]
    words = f"{family.attempts} so far; any statement made from them is false with probability at most "
    words += f"{round_up(family.cost, 3)} in all. "
    if family.budget is None:
        words += "Without a budget, that is no confidence level if one look was taken because of another."
    else:
        words += (
            f"The budget is {family.budget:g}: with confidence {1 - family.budget:g} none of them is false."
        )
    lead = paragraph(words)
    body = [lead, table(rows), table(notes), paragraph(f"Ledger: {ledger}", "small")]
    return Section("Ledger: what the calibration units were asked, and what it cost", Markup("").join(body))


def _facts(facts: Mapping[str, Any]) -> list[str]:
    return [f"{name} {str(value)[:24]}" for name, value in facts.items()]


def _say_menu(opening: Opening) -> str:
    if opening.plan and "scales" in opening.plan:
        scales = ", ".join(map(str, opening.plan["scales"]))
        return f"whole {opening.plan.get('unit', 'episode')}s, at scale or setting {scales}"
    levels = ", ".join(f"({entry.epsilon:g}, {entry.delta:g})" for entry in opening.menu[:4])
    more = f" and {len(opening.menu) - 4} more" if len(opening.menu) > 4 else ""
    return f"certificates at (ε, δ) = {levels}{more}" if levels else "a claim about accepted plans"


def provenance_section(runs: Sequence[StoredRun]) -> Section:
    """Where everything came from: folders, models, versions, digests."""
    rows = []
    for run in runs:
        about = run.about
        model = about.get("model") or {}
        row = {"run": str(run.folder), "task": run.name, "units": about.get("units", 0)}
        row |= {"seed": about.get("seed", ""), "model": str(model.get("name", ""))}
        rows.append(
            row | {"model digest": str(model.get("digest") or "")[:12], "device": about.get("device") or ""}
        )
    versions = {name: text for run in runs for name, text in (run.about.get("versions") or {}).items()}
    listed = [{"package": name, "version": text} for name, text in versions.items()]
    full = [
        folded(f"run.json of {run.folder}", Markup("<pre>{}</pre>").format(json.dumps(run.about, indent=1)))
        for run in runs
    ]
    check = "To check a certificate: pac verify RUN/certificate-....json RUN/scores.parquet; of episodes: "
    check += "pac verify RUN/descent.json --ledger LEDGER."
    return Section(
        "Provenance",
        Markup("").join([paragraph(check), table(rows), folded("Versions", table(listed)), *full]),
    )


def _show_file(path: str) -> Chapter:
    document = read_json(path)
    if document.get("format") == CERTIFICATE:
        return show_certificate(read_certificate(path))
    if document.get("format") != SCORE_MONITOR:
        return show_descent(read_descent(path))
    if seal(document) != document.get("seal"):
        raise BadCertificate(f"{path} was changed after it was written")
    return show_monitor(document)


def write_report(
    places: Sequence[str],
    out: str | os.PathLike[str],
    *,
    limits: Sequence[tuple[str, float, bool]] = (),
    classes: Sequence[str] = (),
    title: str = "",
) -> None:
    """Writes the page of the runs at these places to `out`, whole or not at all.

    places: run folders, folders with some below them, certificates, or files of `pac watch` (JSON)
    limits, classes: see `StoredRun`
    """
    about = tuple(limits), tuple(classes)
    files = [place for place in places if place.endswith(".json")]
    runs = find_runs([place for place in places if place not in files])
    stored = [StoredRun(RunFolder(place), *about) for place in runs]
    if limits and not any(one.shows_tubes for one in stored):
        raise InvalidInput(
            f"--limit is drawn into tubes, got {limits[0][0]!r} and no run with certified ones"
        )
    page = build_page(stored, more=[*map(_show_file, files)], title=title)
    with whole_file(out) as file:
        file.write_text(page, encoding="utf-8")
