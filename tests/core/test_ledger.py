"""A look is written down before it is taken, costs what it costs, and is not taken twice."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pac_program import refused
from pac_program import run as run_program
from scipy.stats import binom

from pac_core import InvalidInput, PACLevel, SecondLook
from pac_core.bounds import Entry, Family, joint_failure_probability, max_errors
from pac_core.certificates import (
    Opening,
    add_note,
    open_ledger,
    open_split,
    read_family,
    read_ledger,
    read_notes,
    score_digest,
)
from pac_core.certificates import ledger as ledger_module
from pac_core.certificates.certificate import seal
from pac_core.certificates.ledger import refuse_spent
from pac_core.errors import BadCertificate, OverBudget
from pac_core.files import FileStore
from pac_core.scores import Temperature
from pac_core.sets import Likelihood

IDS = [f"unit-{i}" for i in range(500)]
ONE = Entry("s", 0.05, 0.01)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def opening(*menu: Entry, ids: list[str] = IDS, data: str = "data") -> Opening:
    return Opening.of(ids, menu, data)


def test_one_epsilon_costs_the_largest_delta() -> None:
    assert joint_failure_probability(500, [Entry("s", 0.05, d) for d in (1e-3, 0.01, 1e-5)]) == 0.01


def test_different_scores_add_up() -> None:
    assert joint_failure_probability(500, [Entry("a", 0.05, 0.01), Entry("b", 0.05, 0.02)]) == pytest.approx(
        0.03
    )
    assert joint_failure_probability(500, [Entry(str(i), 0.5, 0.3) for i in range(9)]) == 1


def test_several_epsilons_by_brute_force() -> None:
    """Two nested binomials, summed term by term."""
    n, (low, high), delta = 60, (0.1, 0.25), 0.2
    k_low, k_high = (max_errors(n, PACLevel(e, delta)) for e in (low, high))
    good = sum(
        binom.pmf(i, n, low) * binom.sf(k_high - i, n - i, (high - low) / (1 - low))
        for i in range(k_low + 1, n + 1)
    )
    assert joint_failure_probability(n, [Entry("s", low, delta), Entry("s", high, delta)]) == pytest.approx(
        1 - good
    )


def test_joint_cost_lies_between_the_largest_and_the_sum() -> None:
    for delta in (0.1, 1e-5, 1e-12, 1e-30):
        menu = [Entry("s", e, delta) for e in (0.02, 0.05, 0.1)]
        tails = [binom.cdf(max_errors(5000, entry.level), 5000, entry.epsilon) for entry in menu]
        assert max(tails) * (1 - 1e-9) <= joint_failure_probability(5000, menu) <= 3 * delta * (1 + 1e-9)


def test_huge_samples_fall_back_to_the_sum() -> None:
    menu = [Entry("s", e, 1e-3) for e in (0.1, 0.2, 0.3)]
    assert joint_failure_probability(10**8, menu) == pytest.approx(3e-3)


def test_the_menu_is_on_disk_and_the_same_look_is_one_look(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "pac-ledger"
    first = open_split(path, opening(ONE))
    assert read_ledger(path) == [first]
    assert open_split(path, opening(ONE)) == first
    assert len(read_ledger(path)) == 1
    assert first.cost == 0.01


def test_the_order_of_menu_and_units_does_not_matter() -> None:
    other = Entry("s", 0.1, 0.01)
    assert opening(ONE, other) == opening(other, ONE, ids=IDS[::-1])


@pytest.mark.parametrize(
    "second",
    [
        opening(Entry("s", 0.04, 0.01)),
        opening(ONE, Entry("s", 0.1, 0.01)),
        opening(Entry("other score", 0.05, 0.01)),
        opening(ONE, data="another model's forecasts"),
        opening(ONE, ids=IDS[1:]),
        opening(ONE, ids=[*IDS, "one more"]),
        opening(ONE, ids=["new-1", "new-2", IDS[7]]),
    ],
)
def test_a_second_look_is_refused(ledger: Path, second: Opening) -> None:
    open_split(ledger, opening(ONE))
    with pytest.raises(SecondLook, match="units were calibrated on before, for 1 certificate"):
        open_split(ledger, second)
    assert len(read_ledger(ledger)) == 1


def test_other_units_are_another_look(ledger: Path) -> None:
    open_split(ledger, opening(ONE))
    open_split(ledger, opening(Entry("s", 0.1, 0.1), ids=[f"new-{i}" for i in range(500)]))
    assert len(read_ledger(ledger)) == 2


LOOK = """
import sys
from pac_core.bounds import Entry
from pac_core.certificates import Opening, open_split
from pac_core import SecondLook
sys.stdin.readline()
try:
    open_split(sys.argv[1], Opening.of(range(500), [Entry("s", float(sys.argv[2]), 0.01)], "data"))
except SecondLook:
    sys.exit(1)
"""


def test_of_many_looks_at_once_one_is_taken(ledger: Path) -> None:
    """Processes wait for a line, so that they all look at the same moment."""
    epsilons = ["0.05", "0.06", "0.07", "0.08"]
    racers = [
        subprocess.Popen([sys.executable, "-c", LOOK, str(ledger), epsilon], stdin=subprocess.PIPE)
        for epsilon in epsilons
    ]
    for racer in racers:
        racer.stdin.write(b"go\n")  # type: ignore[union-attr]
        racer.stdin.flush()  # type: ignore[union-attr]
    for racer in racers:
        racer.communicate()
    codes = [racer.returncode for racer in racers]
    assert sorted(codes) == [0, 1, 1, 1]
    assert [str(o.menu[0].epsilon) for o in read_ledger(ledger)] == [epsilons[codes.index(0)]]


@pytest.mark.parametrize("first", [0, 400])
def test_who_loses_an_entry_decides_again(first: int, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race above may be won by luck; here another process is faster, between reading and writing."""
    create, other = FileStore.create, [sys.executable, "-c", LOOK, str(ledger), "0.06"]

    def late(store: FileStore, name: str, content: bytes) -> None:
        if name == "000001.json":
            subprocess.run(other, input=b"go\n", check=True)
        create(store, name, content)

    monkeypatch.setattr(FileStore, "create", late)
    mine = Opening.of(range(first, first + 100) if first else IDS, [ONE], "data")
    with pytest.raises(SecondLook) if first else contextlib.nullcontext():
        open_split(ledger, mine)
    assert [look.menu[0].epsilon for look in read_ledger(ledger)] == [0.06] + [0.05] * (not first)
    assert (ledger / "000002.json").exists() is not bool(first)


KILLED = """
import os, signal, sys
from pac_core.bounds import Entry
from pac_core.certificates import Opening, open_split
os.link = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
open_split(sys.argv[1], Opening.of(range(500), [Entry("s", 0.05, 0.01)], "data"))
"""


def test_a_crash_between_units_and_entry_leaves_no_look(ledger: Path) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED, str(ledger)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert {path.suffix for path in ledger.iterdir()} == {".units", ".part"}
    with pytest.raises(BadCertificate, match="there is no such ledger"):
        read_ledger(ledger)
    open_split(ledger, Opening.of(range(500), [Entry("t", 0.1, 0.01)], "data"))
    assert {path.suffix for path in ledger.iterdir()} == {".units", ".json"}


def test_where_files_cannot_be_linked_an_entry_is_still_made_by_one(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Any) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr("pac_core.files.os.link", refuse)
    open_split(ledger, opening(ONE))
    assert len(read_ledger(ledger)) == 1
    with pytest.raises(FileExistsError):
        FileStore(str(ledger)).create("000001.json", b"other")
    assert len(read_ledger(ledger)) == 1


@pytest.mark.parametrize(("link", "to"), [("link", "ledger"), ("link.json", "ledger.json")])
def test_a_link_to_a_ledger_is_that_ledger(tmp_path: Path, ledger: Path, link: str, to: str) -> None:
    (tmp_path / link).symlink_to(tmp_path / to)
    for name in ("link", "link.json") if to == "ledger.json" else ("link",):
        open_split(tmp_path / name, opening(ONE))
    assert {path.name for path in tmp_path.iterdir()} == {link, "ledger"}
    assert (tmp_path / link).is_symlink()
    assert len(read_ledger(ledger)) == 1
    with pytest.raises(SecondLook):
        open_split(ledger, opening(Entry("s", 0.1, 0.01)))


def edit(ledger: Path, change: Callable[[Any], Any], number: int = 1, sealed: bool = True) -> None:
    """Change an entry, as somebody would who knows how it is sealed, or does not."""
    file = ledger / f"{number:06d}.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document | ({"seal": seal(document)} if sealed else {})))


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.update(units=""),
        lambda o: o.update(units="../" + 61 * "0"),
        lambda o: o.update(n="x"),
        lambda o: o.update(menu=[]),
        lambda o: o["menu"][0].update(epsilon="x"),
        lambda o: o.update(hashes=[1]),
        lambda o: o.pop("data"),
    ],
)
def test_a_look_whose_parts_do_not_fit_is_refused(ledger: Path, change: Any) -> None:
    open_split(ledger, opening(ONE))
    edit(ledger, lambda document: change(document["openings"][0]))
    with pytest.raises(BadCertificate, match="is a damaged ledger"):
        read_ledger(ledger)


@pytest.fixture
def three(ledger: Path) -> Path:
    """A ledger with three looks at units of their own."""
    for i in range(3):
        open_split(ledger, opening(ONE, ids=others(i)))
    return ledger


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_edited_entry_is_noticed(three: Path, number: int) -> None:
    edit(three, lambda document: document["openings"][0]["menu"][0].update(delta=1e-9), number, sealed=False)
    with pytest.raises(BadCertificate, match=f"00000{number}.json was changed after it was written"):
        open_split(three, opening(ONE))


def test_an_entry_that_was_replaced_is_noticed(three: Path) -> None:
    edit(three, lambda document: document["openings"][0]["menu"][0].update(delta=1e-9), 2)
    with pytest.raises(BadCertificate, match=r"000003.json does not follow the entry before it"):
        open_split(three, opening(ONE))
    (three / "000003.json").unlink()
    (three / "000002.json").rename(three / "000003.json")
    (three / "000001.json").rename(three / "000002.json")
    (three / "000003.json").rename(three / "000001.json")
    with pytest.raises(BadCertificate, match=r"000001.json does not follow"):
        read_ledger(three)


@pytest.mark.parametrize("number", [1, 2])
def test_a_removed_entry_is_noticed(three: Path, number: int) -> None:
    (three / f"00000{number}.json").unlink()
    with pytest.raises(BadCertificate, match=f"lacks its entry 00000{number}.json"):
        open_split(three, opening(ONE))


def test_a_look_whose_units_are_lost_or_changed_lets_no_other_pass(three: Path) -> None:
    units = three / f"{opening(ONE, ids=others(1)).units}.units"
    content = units.read_bytes()
    assert np.frombuffer(content, "<u8").tolist() == sorted(np.frombuffer(content, "<u8").tolist())
    for changed in (content[:-8], content[:-3], bytes(8) + content[8:], b""):
        units.write_bytes(changed)
        with pytest.raises(BadCertificate, match="units was changed after it was written"):
            open_split(three, opening(ONE))
    units.unlink()
    with pytest.raises(BadCertificate, match=r"lacks \w+.units, the units of a look: put it back"):
        open_split(three, opening(ONE))
    with pytest.raises(BadCertificate, match="the units of a look"):
        refuse_spent(three, IDS, [ONE.level])
    units.write_bytes(content)
    open_split(three, opening(ONE))


def test_a_million_units_take_eight_bytes_each_and_are_found_one_by_one(ledger: Path) -> None:
    look = open_split(ledger, Opening.of(range(1_000_000), [ONE], "data"))
    assert sum(path.stat().st_size for path in ledger.iterdir()) < 8 * 1_000_000 + 2000
    assert read_ledger(ledger) == [look]
    for ids in ([-1, 999_999], [0, 2_000_000]):
        with pytest.raises(SecondLook, match="1 of these 2 units"):
            open_split(ledger, Opening.of(ids, [ONE], "data"))
    open_split(ledger, Opening.of(range(1_000_000, 1_001_000), [ONE], "data"))


def test_shared_units_are_counted_whatever_block_they_are_in(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_BLOCK", 7)
    open_split(ledger, Opening.of(range(500), [ONE], "data"))
    for start, stop in ((0, 500), (499, 700), (250, 260), (-90, 1)):
        shared = len(set(range(start, stop)) & set(range(500)))
        with pytest.raises(SecondLook, match=f"^{shared:,} of these {stop - start:,} units"):
            open_split(ledger, Opening.of(range(start, stop), [Entry("t", 0.05, 0.01)], "data"))
    assert not refuse_spent(ledger, range(500, 900), [ONE.level])


@pytest.fixture
def memory() -> Iterator[str]:
    """An object store."""
    fsspec = pytest.importorskip("fsspec")
    yield "memory://bucket/pac-ledger"
    fsspec.filesystem("memory").store.clear()


def test_a_ledger_in_an_object_store(memory: str) -> None:
    open_ledger(memory, budget=0.02)
    look = open_split(memory, opening(ONE))
    add_note(memory, "a thought", {"of": "mine"})
    assert (read_ledger(memory + "/"), read_family(memory)) == ([look], Family(1, 0.01, 0.02))
    with pytest.raises(SecondLook):
        open_split(memory + ".json", opening(Entry("t", 0.05, 1e-3)))
    with pytest.raises(OverBudget):
        open_split(memory, opening(Entry("t", 0.05, 0.02), ids=others(1)))
    store = FileStore(memory)
    assert len(store.names()) == 4
    with pytest.raises(FileExistsError):
        store.create("000002.json", b"another")
    store._fs.rm_file(f"{memory}/000002.json")
    with pytest.raises(BadCertificate, match=r"lacks its entry 000002.json"):
        read_ledger(memory)


def test_of_two_writers_to_an_object_store_one_makes_the_entry(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, both = FileStore.create, []

    def late(store: FileStore, name: str, content: bytes) -> None:
        if not both:
            both.append(name)
            open_split(memory, opening(Entry("faster", 0.05, 0.01)))
        create(store, name, content)

    monkeypatch.setattr(FileStore, "create", late)
    with pytest.raises(SecondLook):
        open_split(memory, opening(ONE))
    assert [look.menu[0].score for look in read_ledger(memory)] == ["faster"]


def test_a_store_that_would_let_two_writers_make_one_entry_is_refused(memory: str) -> None:
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Loose(MemoryFileSystem):  # type: ignore[misc]
        protocol = "loose"

    class Old(MemoryFileSystem):  # type: ignore[misc]
        """As s3fs was before it knew conditional puts: whatever it is told, it replaces the file."""

        protocol = "old"

        def pipe_file(self, path: str, value: bytes, **ignored: Any) -> None:
            super().pipe_file(path, value)

    for kind in (Loose, Old):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    Old.protocol = ("old", "memory")
    for url in ("loose://bucket/pac-ledger", "old://bucket/pac-ledger"):
        with pytest.raises(InvalidInput, match="a store that can refuse to replace a file"):
            open_split(url, opening(ONE))
    with pytest.raises(InvalidInput, match="without credentials"):
        open_split("s3://me:secret@bucket/pac-ledger", opening(ONE))


def single_file(path: Path, version: int, budget: float | None = None) -> None:
    """A ledger as versions 1, 2 and 3 wrote it: of one look at IDS, and notes and a budget if it has them."""
    digests = sorted(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in IDS)
    look = {
        "calibrate": opening().calibrate,
        "n": len(IDS),
        "menu": [{"score": "s", "epsilon": 0.05, "delta": 0.01}],
        "data": "data",
        "units": base64.b64encode(b"".join(digests)).decode(),
    }
    document: dict[str, Any] = {"format": "pac-sets ledger", "version": version, "openings": [look]}
    reset = {"kind": "monitor reset", "time": "2026-01-01T00:00:00+00:00", "facts": {"alpha": 0.005}}
    if version > 1:
        document["notes"] = [reset, reset]  # as when a monitor is begun anew twice in a second
    if version > 2:
        document["budget"] = budget
    path.write_text(json.dumps(document, indent=2) + "\n")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", ["ledger", "ledger.json"])
def test_a_single_file_of_an_earlier_version_goes_on_as_a_folder(
    tmp_path: Path, version: int, name: str
) -> None:
    file, path = tmp_path / "ledger.json", tmp_path / name
    single_file(file, version, budget=0.05 if version == 3 else None)
    before, family = file.read_bytes(), read_family(path)
    assert family == Family(1 if version == 1 else 3, 0.01 if version == 1 else 0.02, family.budget)
    assert open_split(path, opening(ONE)) in read_ledger(path), "the same look again"
    with pytest.raises(SecondLook):
        open_split(path, opening(Entry("late", 0.05, 0.01), ids=IDS[-1:]))
    if version == 3:
        assert open_ledger(path, budget=0.05) == family
    added = open_split(path, opening(ONE, ids=others(1)))
    assert file.read_bytes() == before
    assert read_ledger(path) == [opening(ONE), added]
    assert read_family(path) == family.and_one_of(0.01)
    with pytest.raises(SecondLook):
        open_split(path, opening(Entry("late", 0.05, 0.01), ids=IDS[-1:]))


def test_a_single_file_that_is_changed_removed_or_added_later_is_noticed(
    tmp_path: Path, ledger: Path
) -> None:
    file = tmp_path / "ledger.json"
    single_file(file, 1)
    add_note(ledger, "a thought", {})
    for change in (lambda: single_file(file, 2), file.unlink):
        change()
        with pytest.raises(BadCertificate, match="does not follow the entry before it"):
            open_split(ledger, opening(ONE))
    open_split(tmp_path / "other", opening(ONE))
    single_file(tmp_path / "other.json", 1)
    with pytest.raises(BadCertificate, match="does not follow the entry before it"):
        read_family(tmp_path / "other")


def test_a_file_in_place_of_the_folder_is_refused(ledger: Path) -> None:
    single_file(ledger, 1)
    for look in (read_ledger, lambda path: open_split(path, opening(ONE))):
        with pytest.raises(InvalidInput, match="a ledger must be a folder"):
            look(ledger)


def test_damaged_ledgers_are_refused_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    for text in ("{", "{}", '{"format": "pac-sets ledger", "version": 1, "openings": [{}]}'):
        path.write_text(text)
        with pytest.raises(BadCertificate):
            open_split(path, opening(ONE))
        assert path.read_text() == text


def test_scores_are_told_apart_by_their_numbers() -> None:
    digests = {
        score_digest(Likelihood(False, Temperature(tau, 9))) for tau in (1.0, 1.1, math.nextafter(1.1, 2))
    }
    assert len(digests) == 3
    assert score_digest(Likelihood()) == score_digest(Likelihood())
    assert score_digest(Likelihood(False, Temperature(np.array([1.0]), 9))) not in digests


def others(i: int) -> list[str]:
    return [f"{i}-{j}" for j in range(500)]


def test_a_budget_is_charged_before_each_look_and_never_exceeded(ledger: Path) -> None:
    assert open_ledger(ledger, budget=0.01) == Family(0, 0.0, 0.01)
    third = [opening(Entry(str(i), 0.05, 0.01 / 3), ids=others(i)) for i in range(3)]
    for look in third:
        open_split(ledger, look)
    assert read_family(ledger).attempts == 3
    assert read_family(ledger).cost == pytest.approx(0.01)
    before = sorted(ledger.iterdir())
    with pytest.raises(OverBudget, match="ask for a smaller delta"):
        open_split(ledger, opening(Entry("late", 0.05, 1e-9), ids=others(3)))
    assert sorted(ledger.iterdir()) == before
    assert open_split(ledger, third[0]) == third[0]
    assert open_ledger(ledger, budget=0.01).attempts == 3, "the same command goes on"


def test_a_look_is_charged_with_the_joint_cost_of_its_menu(tmp_path: Path) -> None:
    menu = [Entry("a", 0.05, 0.01), Entry("a", 0.1, 0.01), Entry("b", 0.05, 0.01)]
    open_ledger(tmp_path / "small.json", budget=0.02)
    with pytest.raises(OverBudget):
        open_split(tmp_path / "small.json", opening(*menu))
    open_ledger(tmp_path / "large.json", budget=0.03)
    open_split(tmp_path / "large.json", opening(*menu))
    assert 0.02 < read_family(tmp_path / "large.json").cost == joint_failure_probability(500, menu) < 0.03


def test_monitors_that_begin_anew_count(ledger: Path) -> None:
    open_ledger(ledger, budget=0.025)
    for _ in range(2):
        add_note(ledger, "monitor reset", {"alpha": 0.01})
    with pytest.raises(OverBudget):
        add_note(ledger, "monitor reset", {"alpha": 0.01})
    add_note(ledger, "a thought", {"alpha": 0.01})
    assert len(read_notes(ledger)) == 3
    assert read_family(ledger) == Family(2, 0.02, 0.025)


def test_a_budget_comes_before_everything_and_stays(tmp_path: Path, ledger: Path) -> None:
    open_split(ledger, opening(ONE))
    with pytest.raises(InvalidInput, match="budget must be laid down before anything else"):
        open_ledger(ledger, budget=0.05)
    other = tmp_path / "other.json"
    open_ledger(other, budget=0.05)
    with pytest.raises(InvalidInput, match=r"got 0\.1 for the ledger .* which has 0\.05"):
        open_ledger(other, budget=0.1)
    for wrong in (0, 1, -0.1, math.nan, math.inf, True, "0.1", None):
        with pytest.raises(InvalidInput, match="budget must lie strictly between 0 and 1"):
            open_ledger(tmp_path / "new.json", budget=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("budget", [0.005, 2.0, "0.1", True])
def test_a_ledger_that_costs_more_than_its_budget_is_refused(ledger: Path, budget: Any) -> None:
    open_ledger(ledger, budget=0.01)
    open_split(ledger, opening(ONE))
    edit(ledger, lambda document: document.update(budget=budget))
    before = json.loads((ledger / "000001.json").read_text())["seal"]
    edit(ledger, lambda document: document.update(before=before), 2)
    with pytest.raises(BadCertificate, match="is a damaged ledger"):
        open_split(ledger, opening(ONE, ids=others(1)))


def test_the_program_begins_a_ledger_with_a_budget_and_says_what_is_left(
    tmp_path: Path, ledger: Path
) -> None:
    assert run_program("ledger", ledger, "--budget", "0.02").exit_code == 0
    open_split(ledger, opening(ONE))
    shown = run_program("ledger", ledger).output
    assert "1 attempt or look, charged 0.01 in all to a budget laid down before the first" in shown
    assert "left: 0.01" in shown
    refused(run_program("ledger", ledger, "--budget", "0.5"), "budget must be laid down before anything else")
    refused(run_program("ledger", tmp_path / "none.json"), "cannot be read")
