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
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pac_core.errors import InvalidInput

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None
_HOST = hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()
_PART = re.compile(rf".+\.{_HOST}-[0-9a-f]{{8}}\.part")
_NAMED = ("abfs", "abfss", "az", "sftp", "ssh", "ftp", "hdfs")  # where a name before @ is no secret
_SECRET = re.compile(r"(key|secret|token|password|sig)[^=&]*=", re.IGNORECASE)
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory")
"""Where a file is whole or absent by itself, and a write can refuse to replace one."""


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike[str], *, sweep: bool = True, exclusive: bool = False
) -> Iterator[Path]:
    """A path to write to; it becomes `path` when all is written, and is removed if that fails.

    sweep: remove what killed writers left in the folder; see `sweep_parts`
    exclusive: `FileExistsError` if there is such a file by then; of several writers, one succeeds
    """
    file = Path(path)
    if sweep:
        sweep_parts(file.parent)
    try:
        part, lock = _new_part(file)
        try:
            yield part
            os.fsync(lock)  # or a power cut could leave an empty file under the name
            if exclusive:
                _link(part, file)
            else:
                if file.exists():
                    os.chmod(part, file.stat().st_mode)
                os.replace(part, file)
        finally:
            part.unlink(missing_ok=True)
            os.close(lock)
    except OSError as error:
        if error.filename is None or _PART.fullmatch(os.path.basename(os.fsdecode(error.filename))):
            error.filename, error.filename2 = str(file), None
        raise


def _link(part: Path, file: Path) -> None:
    """Give a finished file its name, which must be free, and make sure that a power cut does not undo it."""
    try:
        os.link(part, file)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: here a crash may leave a half file, which nobody can read
        with open(file, "xb") as whole:
            whole.write(part.read_bytes())
            whole.flush()
            os.fsync(whole.fileno())
    with contextlib.suppress(OSError):  # Windows does not open folders
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def sweep_parts(folder: str | os.PathLike[str]) -> None:
    """Remove the unfinished files of this host's dead writers: a writer's lock ends with its process."""
    if fcntl is None:
        return
    try:
        names = os.listdir(folder)
    except OSError:
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
        with contextlib.suppress(AttributeError, OSError):  # where there are no locks, nothing is swept
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:
            return part, lock
        os.close(lock)  # swept before it was locked


class FileStore:
    """Whole files in a folder on disk, or under the URL of an object store that can refuse to replace one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._fs: Any = _object_store(folder) if "://" in folder else None

    def __str__(self) -> str:
        return self.folder

    def names(self) -> list[str]:
        """Of all files; none if there is no such folder."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if self._fs is None:
                return os.listdir(self.folder)
            found = self._fs.ls(self.folder, detail=False, refresh=True)
            return [path.rpartition("/")[2] for path in found]
        return []

    def open(self, name: str) -> Any:
        """A file to read bytes from."""
        path = f"{self.folder}/{name}"
        return open(path, "rb") if self._fs is None else self._fs.open(path, "rb")

    def create(self, name: str, content: bytes) -> None:
        """Write a new file; `FileExistsError` if there is one: of several writers, one succeeds."""
        self.put(name, content, exclusive=True)

    def put(self, name: str, content: bytes, *, exclusive: bool = False) -> None:
        """Write a file, or replace it unless `exclusive`."""
        path = f"{self.folder}/{name}"
        if self._fs is None:
            os.makedirs(self.folder, exist_ok=True)
            with whole_file(path, exclusive=exclusive) as part:
                part.write_bytes(content)
            return
        try:
            self._fs.pipe_file(path, content, mode="create" if exclusive else "overwrite")
        except OSError as error:  # stores answer in several ways that it is there
            self._fs.invalidate_cache()
            if not exclusive or not self._fs.exists(path):
                raise
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error


def refuse_secrets(url: str) -> None:
    """Refuse a URL that holds a user, a password or a key: it is printed and written down."""
    for part in map(urlsplit, url.split("::")):  # fsspec chains protocols with ::
        named = part.username is not None and part.scheme not in _NAMED
        if part.scheme and (named or part.password is not None or _SECRET.search(part.query)):
            raise InvalidInput(
                f"a URL must be one without credentials (got one of {part.scheme}:// with some): storage "
                "libraries take them from the environment or their own configuration"
            )


def open_storage(url: str, name: str = "") -> tuple[Any, str, set[str]]:
    """fsspec's file system of a URL, the path in it, and its protocols; `name` is what refusals call it."""
    refuse_secrets(url)
    try:
        import fsspec

        fs, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InvalidInput(f"{name or url} must be a path or a URL that fsspec opens: {error}") from None
    return fs, root.rstrip("/"), {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)


def _object_store(url: str) -> Any:
    """fsspec's file system of a URL, refused unless it writes a file only if there is none, as one step."""
    fs, _, protocols = open_storage(url)
    parameters = signature(getattr(fs, "_pipe_file", fs.pipe_file)).parameters  # older versions ignore it
    if protocols.isdisjoint(OBJECT_STORES) or "mode" not in parameters:
        raise InvalidInput(
            f"{url} must be a path, or in a store that can refuse to replace a file (s3, gs, az, each with "
            "its fsspec library from 2025 on): else two processes could both take the same look"
        )
    return fs
