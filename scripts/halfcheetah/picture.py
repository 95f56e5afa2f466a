"""The picture of the README: the robot without and with its guard, its speed, the limit and the tube."""

import numpy as np
from markupsafe import Markup

from pac_core.report import StoredRun
from pac_core.runs import RunFolder
from pac_rl import make_environment
from pac_rl.pages import draw_frames, typical_episode

WIDE, LANE, CHART, SHOWN = 960, 134, 190, 6
INK = {"by the policy alone": "#b5412a", "with the guard": "#2f7541"}
WORDS = (
    "m/s in 8 seconds of a median episode in MuJoCo; the shade: reach of the guard's tube within three steps"
)
STYLE = "font-family:system-ui,'DejaVu Sans',sans-serif;font-size:15px"


def draw_picture(out, file, first=20, last=180):
    """Two lanes of the same episode and its speeds, from the run folders of the demo in `out`, as SVG."""
    runs = [StoredRun(RunFolder(place)) for place in sorted((out / "guard/episodes").iterdir())]
    runs.sort(key=lambda run: run.about["guard"])
    robot, unit = make_environment(runs[0].about["env"]), typical_episode(runs)
    at = {id(run): int((run.arrays["ids"] == unit).argmax()) for run in runs}
    _, number, bound = runs[0].about["limits"][0]
    column, marks, curves = robot.names.index(number), [], []
    top, floor = 2 * LANE + 24, 2 * LANE + CHART
    most = max(float(np.nanmax(run.arrays["states"][at[id(run)], first:last, column])) for run in runs) * 1.08

    def place(t, value):
        x = 60 + (WIDE - 80) * (t - first) / (last - 1 - first)
        return f"{x:.1f},{floor - (floor - top) * value / most:.1f}"

    for lane, run in enumerate(runs):
        name, states = run.about["guard"], run.arrays["states"][at[id(run)]].astype(float)
        ink, ground, speeds = INK[name], LANE * (lane + 1) - 14, states[:, column]
        way, frames, radii = draw_frames(robot, states[np.isfinite(states).all(axis=1)])
        marks.append(line(0, ground, WIDE, ground, "#8a929c", 2))
        times = np.linspace(first, min(last, len(frames)) - 8, SHOWN).astype(int)
        for i, near in enumerate(times):
            t = near + int(np.argmax(speeds[near : near + 8]))  # the peak of a stride
            middle, scale = 90 + (WIDE - 180) * i / (SHOWN - 1), 66
            for (xa, za, xb, zb), radius in zip(frames[t], radii, strict=True):
                ends = (middle + (xa - way[t]) * scale, ground - za * scale)
                ends += (middle + (xb - way[t]) * scale, ground - zb * scale)
                marks.append(line(*ends, ink, 2 * radius * scale, "round"))
            colour = "#b3261e" if speeds[t] > bound else "#3c444d"
            marks.append(text(middle, ground - 84, f"{speeds[t]:.1f} m/s", colour, "middle"))
        marks.append(text(4, ground - 104, f"{name} (each at the peak of a stride)", ink, "start", bold=True))
        curves.append(polyline([place(t, max(0.0, speeds[t])) for t in range(first, last)], ink, 2.5))
        upper = run.arrays["upper"][at[id(run)], :, :3].max(axis=1)
        if np.isfinite(upper).any():
            ends = [place(t, upper[t]) for t in range(first, last) if np.isfinite(upper[t])]
            back = [place(t, max(0.0, speeds[t])) for t in range(first, last)][::-1]
            shade = '<polygon points="{}" fill="{}" opacity="0.25"/>'
            curves.append(Markup(shade).format(" ".join(ends + back), ink))
    y = floor - (floor - top) * bound / most
    marks += [*curves, line(60, y, WIDE - 20, y, "#b3261e", 2, dash="7 5")]
    marks.append(text(WIDE - 24, y - 7, f"limit {bound:g} m/s", "#b3261e", "end"))
    marks.append(text(60, floor + 22, WORDS, "#3c444d", "start"))
    for value in range(0, int(most) + 1, 2):
        height = floor - (floor - top) * value / most
        marks += [
            line(60, height, WIDE - 20, height, "#e3e6e9", 1),
            text(52, height + 5, str(value), "#59616b", "end"),
        ]
    alt = "A half-cheetah runs past its speed limit without a guard and stays below it with one."
    made = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" role="img" aria-label="{2}" '
    made += 'style="{3}">'
    made += '<rect width="{0}" height="{1}" fill="white"/>{4}</svg>\n'
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(Markup(made).format(WIDE, floor + 34, alt, STYLE, Markup("").join(marks)))


def line(x1, y1, x2, y2, ink, wide, cap="butt", dash="none"):
    made = '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{:.1f}" '
    made += 'stroke-linecap="{}" stroke-dasharray="{}"/>'
    return Markup(made).format(x1, y1, x2, y2, ink, wide, cap, dash)


def polyline(points, ink, wide):
    made = '<polyline points="{}" fill="none" stroke="{}" stroke-width="{}"/>'
    return Markup(made).format(" ".join(points), ink, wide)


def text(x, y, words, ink, anchor, bold=False):
    made = '<text x="{:.1f}" y="{:.1f}" fill="{}" text-anchor="{}" font-weight="{}">{}</text>'
    return Markup(made).format(x, y, ink, anchor, 700 if bold else 400, words)
