"""The checker of pac_core under its older address."""

from pac_core import Checked, TubeChecker

__all__ = ["Checked", "TubeChecker"]
