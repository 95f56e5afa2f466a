"""What `pac report` shows of images with their label sets, and of tracked videos with their boxes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from pac_core.errors import PACError
from pac_core.report import (
    Chapter,
    Section,
    StoredRun,
    certificate_headlines,
    coverage_sections,
    join,
    paragraph,
    say_units,
    show_runs,
    sweep_sections,
)
from pac_core.runs import ALL
from pac_vision.images.sources import find_unlabelled_images
from pac_vision.tracking import BoxScore, read_tracks

DATA = "data.txt"
"""Of a run folder: where the files of the units lie."""
SHOWN = 12
"""Images of the grid."""
FRAMES = 4
"""Of a video."""


def show_images(runs: Sequence[StoredRun]) -> Chapter:
    """Certificates of label sets, and images with their sets."""
    heads = [head for run in runs for head in certificate_headlines(run)]
    sections = []
    for run in runs:
        sections += [*coverage_sections(run), *_pictures(run), *sweep_sections(run)]
    return Chapter(f"Images with label sets: {say_units(runs)}", heads, sections)


def _pictures(run: StoredRun) -> list[Section]:
    """Test images with their sets: up to four that were missed, then sets from small to large."""
    if run.main is None or run.task is None or not run.results.parts.test.n:
        return []
    one, _ = run.main
    _, rows, (_, forecast, labels) = next(iter(run.results.over("test", ALL)))
    sets = one.predictor.sets(forecast)
    sizes, inside = np.asarray(sets.size()), np.asarray(sets.contains(labels))
    hits = np.flatnonzero(inside)
    hits = hits[np.argsort(sizes[hits], kind="stable")]
    missed = np.flatnonzero(~inside)[:4]
    some = hits[np.linspace(0, len(hits) - 1, SHOWN - len(missed)).round().astype(int)] if len(hits) else hits
    read, note = _reader(run)
    members, cards = sets.labels(), []
    for row in [*missed.tolist(), *dict.fromkeys(some.tolist())]:
        name = str(run.results.task.names[rows[row]])
        words = ", ".join(_class(run, label) for label in members[row][:8])
        more = f" and {len(members[row]) - 8} more" if len(members[row]) > 8 else ""
        truth = "" if inside[row] else f" Missed: {_class(run, int(labels[row]))}."
        card = '<li class="{}">{}<b>{{{}{}}}</b>{}<br><span class="small">{}</span></li>'
        kind = "" if inside[row] else "missed"
        cards.append(Markup(card).format(kind, read(name), words, more, truth, name))
    lead = (
        "Test images with their label sets: up to four that were missed (framed), then small to large sets."
    )
    body = paragraph(lead) + note + Markup('<ul class="pictures">{}</ul>').format(join(cards))
    return [Section("Images and their sets", body)]


def _class(run: StoredRun, label: int) -> str:
    return run.classes[label] if label < len(run.classes) else f"class {label}"


def _reader(run: StoredRun) -> tuple[Any, Markup]:
    """What makes a small picture of an image, and a remark where the images are not to be had."""
    try:
        source = find_unlabelled_images(run.folder.get(DATA).decode())
    except (PACError, OSError) as error:
        return lambda name: "", paragraph(f"The images cannot be shown: {error}", "note")

    def read(name: str) -> Markup:
        try:
            image = source.image(name).convert("RGB")
        except (PACError, OSError, KeyError):
            return Markup("")
        return _inline(image, name)

    return read, Markup("")


def _inline(image: Image.Image, name: str) -> Markup:
    """A picture of at most 200 pixels inside the page."""
    image.thumbnail((200, 200))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    data = base64.b64encode(content.getvalue()).decode()
    made = '<img src="data:image/jpeg;base64,{}" alt="{}" width="{}" height="{}">'
    return Markup(made).format(data, name, *image.size)


def show_tracks(runs: Sequence[StoredRun]) -> Chapter:
    """Certificates of videos, and boxes of some test videos over their frames."""
    plain = show_runs(runs)
    sections = [section for run in runs for section in _overlays(run)]
    return Chapter(f"Tracked videos: {say_units(runs)}", plain.headlines, [*plain.sections, *sections])


def _overlays(run: StoredRun) -> list[Section]:
    """Boxes in frames of some test videos, where the run scored stored tracks."""
    if run.main is None or run.about.get("frame_score", "max") != "max":
        return []
    try:
        tracks = read_tracks(run.folder.get(DATA).decode())
    except (PACError, OSError):
        return []  # tracked from frames: the boxes were not stored
    score, cards = BoxScore(power=run.about["power"]), []
    threshold = run.main[0].predictor.threshold.value
    for name in run.results.units("test")[:FRAMES].tolist():
        video = tracks.video(name)
        sets = score.sets(video.forecast, threshold)
        lower, upper = (np.asarray(end) for end in sets.box())
        inside = np.asarray(sets.contains(video.truth))
        for row in np.linspace(0, len(inside) - 1, FRAMES).round().astype(int).tolist():
            outer = np.concatenate([lower[row, :2], upper[row, 2:]])
            boxes = [("ink-2", outer), ("ink-1", np.asarray(video.mean)[row]), ("ink-0", video.truth[row])]
            text = f"{name}, frame {int(video.frames[row])}: {'inside' if inside[row] else 'missed'}"
            card = '<li class="{}">{}{}</li>'
            cards.append(Markup(card).format("" if inside[row] else "missed", _boxes(boxes, text), text))
    lead = (
        "Frames of test videos: the truth (blue), the prediction (red), the box around all boxes of the set."
    )
    return [
        Section(
            "Tracks and their boxes",
            paragraph(lead) + Markup('<ul class="pictures">{}</ul>').format(join(cards)),
        )
    ]


def _boxes(boxes: Sequence[tuple[str, Any]], alt: str) -> Markup:
    finite = np.array([box for _, box in boxes if np.isfinite(box).all()])
    low, high = finite.reshape(-1, 2).min(axis=0) - 10, finite.reshape(-1, 2).max(axis=0) + 10
    scale = 200 / (high - low).max()
    marks = [
        Markup('<rect class="box {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            kind, *((box[:2] - low) * scale), *((box[2:] - box[:2]) * scale)
        )
        for kind, box in boxes
        if np.isfinite(box).all()
    ]
    made = '<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>'
    return Markup(made).format(*((high - low) * scale), alt, join(marks))
