"""Anybody's log of episodes: what is read of it, what is refused, and what it proves while it grows."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pac_program import refused, run

from pac_core import InvalidInput, PACLevel, SecondLook
from pac_core.betting import Bets
from pac_core.certificates import certify_log, read_descent, read_family, read_log, verify_descent
from pac_core.certificates.certificate import json_digest
from pac_core.errors import PACError, UnreadableFile

LEVEL = PACLevel(0.05, 0.01)
ASKED = ("--epsilon", "0.05", "--delta", "0.01")


def write(path: Path, errors: Any, **columns: Any) -> Path:
    names = ["id", "error", *columns]
    rows = zip(range(len(errors)), errors, *columns.values(), strict=True)
    lines = [",".join(names), *(",".join(str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def prove(path: Path, **options: Any) -> Any:
    usual: dict[str, Any] = {"ledger": path.with_name("ledger"), "name": "mine", "most": 200}
    return certify_log(read_log(path), LEVEL, **(usual | options))


def test_the_same_log_in_each_format(tmp_path: Path) -> None:
    errors = [False] * 20 + [True] + [False] * 150
    write(tmp_path / "a.csv", [str(one).lower() for one in errors])
    lines = [json.dumps({"episode": f"e{i}", "success": not one}) for i, one in enumerate(errors)]
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    old = [{"episode_ix": i, "success": not one, "seed": 7 + i} for i, one in enumerate(errors)]
    (tmp_path / "c.json").write_text(json.dumps({"per_episode": old, "aggregated": {"pc_success": 99.3}}))
    task = {"task_group": "aloha", "task_id": 0, "metrics": {"successes": [not one for one in errors]}}
    (tmp_path / "d.json").write_text(json.dumps({"per_task": [task], "overall": {}}))
    for name in ("a.csv", "b.jsonl", "c.json", "d.json"):
        log = read_log(tmp_path / name)
        assert next(iter(log.losses.values())).tolist() == [float(one) for one in errors], name
        shown = certify_log(log, LEVEL, ledger=tmp_path / f"{name}-ledger", name=name, most=200)
        assert shown.trials[0].n == Bets.at(0.05).first_proof(errors, 0.01)


def test_a_log_that_grows_is_counted_on(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for n in (1, 40, 104):
        assert prove(write(path, [0] * n)).open
    shown = prove(write(path, [0] * 105))
    assert (shown.certified, shown.trials[0].n) == ("mine", 105)
    assert read_family(tmp_path / "ledger").attempts == 1, "looking often costs nothing"
    later = prove(write(path, [0] * 105 + [1] * 50))
    assert later.errors == shown.errors, "what comes after the proof does not count"


@pytest.mark.parametrize("n", [7, 31, 105])
def test_errors_after_the_proof_are_no_business_of_the_certificate(tmp_path: Path, n: int) -> None:
    whole = prove(write(tmp_path / "log.csv", [0] * 140))
    steps = tmp_path / "steps"
    steps.mkdir()
    for end in (*range(n, 140, n), 140):
        found = prove(write(steps / "log.csv", [0] * end))
    assert found.errors == whole.errors


@pytest.mark.parametrize(
    "cheat",
    [
        lambda rows: [*rows[:30], rows[30].replace(",1", ",0"), *rows[31:]],  # an error mended
        lambda rows: rows[:30] + rows[31:],  # an error left out
        lambda rows: rows[:30] + rows[31:] + [rows[30]],  # counted as it finished, late
        lambda rows: rows[:20],  # begun anew
        lambda rows: [rows[0], rows[2], rows[1], *rows[3:]],  # another order
    ],
)
def test_an_edited_prefix_is_refused(tmp_path: Path, cheat: Any) -> None:
    path = write(tmp_path / "log.csv", [int(i == 29) for i in range(60)])
    prove(path)
    path.write_text("\n".join(cheat(path.read_text().splitlines())) + "\n")
    with pytest.raises(InvalidInput, match="the first 60 episodes must be those that were read before"):
        prove(path)


@pytest.mark.parametrize(
    "cheat",
    [
        lambda rows: rows[:80] + rows[81:],  # the one that still ran is gone
        lambda rows: [*rows[:80], *rows[81:], rows[80] + "0"],  # it began last, after all
        lambda rows: [*rows[:80], rows[80] + "0", *rows[81:90], rows[90].replace(",1", ",0"), *rows[91:]],
        lambda rows: [*rows[:80], "x,0", *rows[81:]],  # another one ran in its place
        lambda rows: [*rows[:70], rows[70][:-1], *rows[71:]],  # an outcome that is unknown again
    ],
    ids=["removed", "moved", "a later outcome mended", "renamed", "taken back"],
)
def test_episodes_that_still_run_cannot_be_edited_away(tmp_path: Path, cheat: Any) -> None:
    """Without it: certified by 105 good ones of a log whose bad ones took long."""
    errors = ["" if i == 79 else int(i == 89) for i in range(120)]
    path = write(tmp_path / "log.csv", errors)
    assert prove(path).open
    rows = path.read_text().splitlines()
    assert rows[80] == "79,"
    path.write_text("\n".join([*cheat(rows), *(f"{i},0" for i in range(120, 200))]) + "\n")
    with pytest.raises(InvalidInput, match="the first 120 episodes must be those that were read before"):
        prove(path)
    path.write_text("\n".join([*rows[:80], "79,0", *rows[81:], *(f"{i},0" for i in range(120, 200))]) + "\n")
    assert prove(path).trials[0].errors == 1, "as it really ended, it goes on"


def test_several_that_still_run_cannot_be_moved_behind_the_others(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", ["" if 60 <= i < 63 else 0 for i in range(70)])
    assert prove(path).trials[0].n == 60
    rows = path.read_text().splitlines()
    moved = [*rows[:61], *rows[64:], *(f"{i},0" for i in range(70, 120)), "60,1", "61,1", "62,1"]
    path.write_text("\n".join(moved) + "\n")
    with pytest.raises(InvalidInput, match="the first 70 episodes"):
        prove(path)


def test_what_an_earlier_version_wrote_down_is_compared_as_it_was(tmp_path: Path) -> None:
    """Its notes hold the digest of the finished episodes alone."""
    path = write(tmp_path / "log.csv", [0, 1, 0, ""])
    log = read_log(path)
    old = {"ids": ["0", "1", "2"], "losses": {"error": [0.0, 1.0, 0.0]}}
    assert log.follows({"n": 3, "digest": json_digest(old)})
    assert not log.follows({"n": 3, "digest": json_digest(old | {"ids": ["0", "2", "1"]})})
    assert not log.follows({"n": 4, "digest": json_digest(old)})


@given(st.lists(st.sampled_from(["0", "1", ""]), min_size=1, max_size=12), st.data())
def test_a_log_follows_exactly_those_that_it_continues(
    tmp_path_factory: pytest.TempPathFactory, outcomes: list[str], data: Any
) -> None:
    """Outcomes may be filled in and episodes added; any other change of a cell is seen."""
    path = tmp_path_factory.mktemp("log") / "log.csv"
    before = read_log(write(path, outcomes))
    later = [one or data.draw(st.sampled_from(["0", "1", ""])) for one in outcomes] + ["0"]
    assert read_log(write(path, later)).follows(before.record(len(outcomes)))
    place = data.draw(st.integers(0, len(outcomes) - 1))
    if outcomes[place]:
        later[place] = {"0": "1", "1": "0"}[outcomes[place]]
        assert not read_log(write(path, later)).follows(before.record(len(outcomes)))
    if len(outcomes) > 1:
        assert not read_log(write(path, outcomes[1:])).follows(before.record(len(outcomes)))


def test_another_plan_for_the_same_evaluation_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", [0] * 60)
    prove(path)
    with pytest.raises(SecondLook, match="was begun with another plan"):
        prove(path, most=500)


def test_only_the_complete_prefix_counts(tmp_path: Path) -> None:
    """An episode that still runs ends it; one that was lost is an error; half a line is not there."""
    path = write(tmp_path / "log.csv", [0, 0, "lost", 0, "", 0, 1])
    path.write_text(path.read_text() + "7,0")
    log = read_log(path)
    assert (len(log), log.waiting, log.cut) == (4, 3, True)
    assert log.losses["error"][:4].tolist() == [0, 0, 1, 0]
    assert "the last line has no end and is not read" in run("certify-episodes", path, *ASKED).output
    lines = '{"id": 1, "error": false}\n{"id": 2, "error": null}\n{"id": 3, "error": true}\n{"id": 4, "er'
    (tmp_path / "log.jsonl").write_text(lines)
    again = read_log(tmp_path / "log.jsonl")
    assert (len(again), again.waiting) == (1, 2)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("id,error\n1,0\n1,0\n", {}, "ids must be unique"),
        ("id,error\n1,maybe\n", {}, "error of episode 1 must be true or false"),
        ("id,error\n1,nan\n", {}, "must be true or false"),
        ("id,error\n1,0.5\n", {}, "must be true or false"),
        ("id,share\n1,nan\n", {"losses": ["share"]}, r"must be a number in \[0, 1\]"),
        ("id,share\n1,1.5\n", {"losses": ["share"]}, r"must be a number in \[0, 1\]"),
        ("id,error\n1,0\n", {"error": "crash"}, "it has id, error"),
        ("run,error\n1,0\n", {}, "id must be a column"),
        ("id,error\n1,0\n", {"group": "terrain"}, "group must be a column"),
        ("id,error\n1,0\n2\n", {}, "episode 2 must have the columns"),
        ("id,error\n1,0,9\n", {}, "episode 1 must have the columns"),
        ("id,error\n", {}, "holds no finished line"),
        ("id,error", {}, "holds no finished line"),
        ("id,error\n1,0\n", {"error": "error", "losses": ["error"]}, "got several"),
        ("id,error\n1,0\n", {"task": "a/0"}, "task is for LeRobot"),
    ],
)
def test_logs_that_are_refused(tmp_path: Path, text: str, options: dict[str, Any], words: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(PACError, match=words):
        read_log(tmp_path / "log.csv", **options)


def test_tasks_one_after_the_other_are_no_draw_from_their_mixture(tmp_path: Path) -> None:
    tasks = [
        {"task_group": "libero", "task_id": i, "metrics": {"successes": [True] * 3 + [False] * i}}
        for i in range(2)
    ]
    path = tmp_path / "eval_info.json"
    path.write_text(json.dumps({"per_task": tasks, "overall": {}}))
    with pytest.raises(InvalidInput, match="no draw from their mixture: libero/0, libero/1"):
        read_log(path)
    assert read_log(path, task="libero/1").losses["success"].tolist() == [0, 0, 0, 1]
    with pytest.raises(InvalidInput, match="task must be one of"):
        read_log(path, task="libero/2")


KEYS = st.sampled_from(
    ["per_episode", "per_task", "episode_ix", "success", "task_group", "task_id", "metrics"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


@settings(max_examples=200)
@given(st.binary(max_size=80) | JSON, st.sampled_from([".csv", ".jsonl", ".json", ".txt"]))
def test_no_file_makes_it_stumble(tmp_path_factory: pytest.TempPathFactory, content: Any, end: str) -> None:
    path = tmp_path_factory.mktemp("log") / f"log{end}"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode() + b"\n")
    with suppress(InvalidInput, UnreadableFile):
        read_log(path)


def test_the_program_says_what_it_knows(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", [0] * 60)
    early = run("certify-episodes", path, *ASKED)
    assert early.exit_code == 1
    assert "45 more episodes without an error would prove it" in early.output
    assert "valid only if n was fixed beforehand" in early.output
    write(path, [0] * 110)
    done = run("certify-episodes", path, *ASKED)
    assert done.exit_code == 0, done.output
    assert "P(error in a fresh episode of exactly this controller) <= 0.05" in done.output
    file, book = tmp_path / "log.certificate.json", tmp_path / "pac-ledger"
    assert all(check.holds for check in verify_descent(read_descent(file), book))
    assert run("verify", file, "--ledger", book).exit_code == 0
    assert len(file.read_text()) < 3000, "it names 10,000 episodes in a word"
    refused(run("certify-episodes", path, "--epsilon", "0.1", "--delta", "0.01"), "another plan")


def test_its_page_shows_how_the_evidence_grew(tmp_path: Path) -> None:
    path = write(tmp_path / "<b>log.csv", [0] * 110)
    assert run("certify-episodes", path, *ASKED).exit_code == 0
    out = tmp_path / "page.html"
    assert run("report", tmp_path / "<b>log.certificate.json", "--out", out).exit_code == 0
    page = out.read_text()
    assert "A new episode is an error with probability at most 5%, with confidence 99%." in page
    assert "How the evidence grew" in page
    assert "<b>log" not in page, "a hostile name stays text"


def test_settings_are_columns_of_losses(tmp_path: Path) -> None:
    n = 400
    shares = {"wide": [0.0] * n, "middle": [0.01] * n, "narrow": [0.3] * n}
    path = write(tmp_path / "log.csv", [0] * n, **shares)
    asked = [part for name in shares for part in ("--loss", name)]
    done = run("certify-episodes", path, *ASKED, *asked)
    assert done.exit_code == 0, done.output
    assert "Certified at setting middle: E[loss of a fresh episode" in done.output
    once = run("certify-episodes", path, *ASKED, *asked, "--at-end", "--most", n, "--name", "once")
    assert "Certified at setting middle" in once.output
    assert "all looked at once; 400" in once.output


def test_groups_share_delta_and_hold_together(tmp_path: Path) -> None:
    terrain = ["flat" if i % 3 else "rough" for i in range(240)]
    errors = [int(i % 6 == 0) for i in range(240)]
    path = write(tmp_path / "log.csv", errors, terrain=terrain)
    done = run("certify-episodes", path, "--epsilon", "0.1", "--delta", "0.02", "--group", "terrain")
    assert done.exit_code == 1, "every second episode on rough ground is an error"
    family = read_family(tmp_path / "pac-ledger")
    assert (family.attempts, family.cost, family.budget) == (2, 0.02, 0.02)
    flat = tmp_path / "log.certificate-flat.json"
    assert read_descent(flat).certified == "log.csv/flat"
    assert read_descent(tmp_path / "log.certificate-rough.json").certified is None
    assert run("verify", flat, "--ledger", tmp_path / "pac-ledger").exit_code == 0
    write(path, [*errors, 0], terrain=[*terrain, "ice"])
    asked = ("certify-episodes", path, "--epsilon", "0.1", "--delta", "0.02", "--group", "terrain")
    refused(run(*asked), "groups must be those of the first look, flat, rough, which share delta, got ice")
    refused(run(*asked, "--groups", "flat,rough,ice"), "which share delta, got ice:")
    refused(run(*asked[:-2], "--groups", "flat"), "got no --group")


def test_groups_to_come_have_their_share_from_the_first_look_on(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", [0] * 100, terrain=["flat"] * 100)
    asked = ("certify-episodes", path, "--epsilon", "0.1", "--delta", "0.03", "--group", "terrain")
    refused(
        run(*asked, "--groups", "rough,ice"),
        "those of the first look, ice, rough, which share delta, got flat",
    )
    first = run(*asked, "--groups", "flat,rough,ice")
    assert "flat, ice, rough: each at delta = 0.01, so all hold together" in first.output
    write(path, [0] * 200, terrain=["flat"] * 100 + ["ice"] * 100)
    again = run(*asked)
    assert again.exit_code == 1, "of rough ground nothing is known"
    for name, sure in (("flat", True), ("ice", True), ("rough", False)):
        file = tmp_path / f"log.certificate-{name}.json"
        assert (read_descent(file).certified is not None) is sure
        assert run("verify", file, "--ledger", tmp_path / "pac-ledger").exit_code == 0


def test_groups_need_a_ledger_with_a_budget(tmp_path: Path) -> None:
    """Without one `pac verify` confirms none of several evaluations, so nobody may say they hold together."""
    path = write(tmp_path / "log.csv", [0] * 110, terrain=["flat"] * 110)
    run("certify-episodes", path, *ASKED)
    asked = ("certify-episodes", path, *ASKED, "--group", "terrain", "--name", "by terrain")
    refused(run(*asked), "ledger must have a budget, which all groups share")
    assert read_family(tmp_path / "pac-ledger").attempts == 1
    assert run(*asked, "--ledger", tmp_path / "other").exit_code == 0
    twice = run("certify-episodes", path, *ASKED, "--name", "again")
    assert "pac verify confirms one evaluation in such a ledger" in twice.output
