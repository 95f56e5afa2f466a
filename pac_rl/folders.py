"""A folder that keeps what was computed: it belongs to one design, and its files are whole or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pac_core import InvalidInput, UnreadableFile
from pac_core.documents import write_json
from pac_core.files import whole_file
from pac_core.tables import read_arrays


class Folder:
    """Files of arrays by name, in a folder that was claimed for what `about` says.

    about: what determines the files, as JSON can say it; a folder of anything else is refused
    """

    def __init__(self, path: str | os.PathLike[str], about: dict[str, Any]) -> None:
        self.path, file = Path(path), Path(path) / "design.json"
        ours = json.loads(json.dumps(about))
        if not file.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            return write_json(file, ours)
        try:
            theirs = json.loads(file.read_text())
        except json.JSONDecodeError:
            raise UnreadableFile(f"{file} is cut off or damaged; remove the folder to start anew") from None
        if differing := [name for name in ours | theirs if theirs.get(name) != ours.get(name)]:
            raise InvalidInput(
                f"{self.path} belongs to a study with another {', '.join(differing)}; choose another folder"
            )

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def has(self, name: str) -> bool:
        return self._file(name).exists()

    def read(self, name: str, kind: Callable[..., Any]) -> Any:
        """What `write` was given, as a dataclass of arrays."""
        return kind(**read_arrays(self._file(name)))

    def write(self, name: str, arrays: Any) -> None:
        """Keeps a dataclass of arrays under this name."""
        file = self._file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as part, part.open("wb") as content:
            np.savez(content, **{field: array for field, array in vars(arrays).items() if array is not None})

    def _file(self, name: str) -> Path:
        return self.path / "kept" / f"{name.replace(', ', '-').replace(' ', '-')}.npz"
