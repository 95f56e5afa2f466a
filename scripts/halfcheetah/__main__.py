"""One command for the half-cheetah: `python scripts/halfcheetah figures --help`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # so that workers find the modules beside as `halfcheetah`

from halfcheetah.commands import main  # noqa: E402

if __name__ == "__main__":
    main()
