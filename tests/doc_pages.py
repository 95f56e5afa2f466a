"""Runs the code of a page: its python and console blocks, in order, in this process and folder.

A ``text`` block right after a block, and the lines below a ``$ command``, are what is printed; ``...`` stands
for anything. ``<!-- skip: reason -->`` before a block leaves it out.
"""

from __future__ import annotations

import doctest
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUN = ("python", "console")
LIKE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_BLOCK = re.compile(
    r"(?:<!-- skip:\s*(?P<skip>[^>]+?)\s*-->\n+)?^```(?P<kind>\w*)[^\n]*\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its first line there, its language, and why it is not run, if it is not."""

    line: int
    kind: str
    code: str
    skip: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start("code")) + 1, found["kind"], found["code"], found["skip"])
        for found in _BLOCK.finditer(text)
    ]


def commands(code: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", code, flags=re.M)[1:]:
        command = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n", part)
        assert command is not None
        found.append((command[0], part[command.end() :]))
    return found


def compare(page: Path, line: int, want: str, got: str) -> None:
    if want.strip() and not doctest.OutputChecker().check_output(want, got, LIKE):
        raise SystemExit(f"{page.name}, line {line}: the page says\n{want}\nbut this is printed\n{got}")


def run_console(page: Path, block: Block) -> None:
    for command, want in commands(block.code):
        done = subprocess.run(["bash", "-c", command], stdout=-1, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{page.name}, line {block.line}: {command}failed\n{done.stdout}")
        compare(page, block.line, want, done.stdout)


def run_page(page: Path) -> None:
    """Raises, or exits with what differs."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    printed: str | None = None  # by the block before
    for block in blocks(page):
        if block.kind == "text" and printed is not None and block.skip is None:
            compare(page, block.line, block.code, printed)
        printed = None
        if block.skip is not None or block.kind not in RUN:
            continue
        if block.kind == "console":
            run_console(page, block)
            continue
        with redirect_stdout(io.StringIO()) as output:
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), module.__dict__)
        printed = output.getvalue()


def run_fresh(page: Path, folder: Path, **environment: str) -> None:
    """Runs a page in a process of its own, in `folder`."""
    clean = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"} | environment
    clean["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    done = subprocess.run(
        [sys.executable, __file__, str(page)], cwd=folder, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
