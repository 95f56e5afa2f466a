"""Files that are written whole or not at all, whatever stops the writer."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

_HOST = hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()
_PART = re.compile(rf".+\.{_HOST}-[0-9a-f]{{8}}\.part")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, sweep: bool = True) -> Iterator[Path]:
    """A path to write to; it becomes `path` when all is written, and is removed if that fails.

    An `OSError` on the way, such as a full disk, names `path`.
    sweep: remove what killed writers left in the folder; see `sweep_parts`
    """
    file = Path(path)
    if sweep:
        sweep_parts(file.parent)
    try:
        part, lock = _new_part(file)
        try:
            yield part
            if file.exists():
                os.chmod(part, file.stat().st_mode)
            os.fsync(lock)  # or a power cut could leave an empty file under the name
            os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
            os.close(lock)
    except OSError as error:
        if error.filename is None or _PART.fullmatch(os.path.basename(os.fsdecode(error.filename))):
            error.filename, error.filename2 = str(file), None
        raise


def sweep_parts(folder: str | os.PathLike[str]) -> None:
    """Remove the unfinished files of writers that are dead.

    A writer keeps its file locked, and the system lets go of the lock when it ends, however it ends. Not
    every network file system shows a lock to other machines, so files of other hosts, known by their names,
    stay.
    """
    try:
        import fcntl

        names = os.listdir(folder)
    except (ImportError, OSError):  # Windows has no such locks
        return
    for name in filter(_PART.fullmatch, names):
        with contextlib.suppress(OSError):  # it is locked, gone, or not ours to remove
            part = os.open(Path(folder) / name, os.O_RDWR)
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(Path(folder) / name)
            finally:
                os.close(part)


def real_path(path: str | os.PathLike[str]) -> Path:
    """The path without links; a circle of links is an `OSError`, as when it is opened."""
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def _new_part(file: Path) -> tuple[Path, int]:
    """A new file beside `file` with a name of its own, whoever else writes, and the lock that keeps it."""
    while True:
        part = file.with_name(f"{file.name[:50]}.{_HOST}-{secrets.token_hex(4)}.part")
        lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with contextlib.suppress(ImportError, OSError):  # where there are no locks, nothing is swept
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:
            return part, lock
        os.close(lock)  # swept before it was locked
