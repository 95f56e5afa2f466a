"""Figures to reach, as ratios in one run: `make bench`, or `make bench ONLY=name`."""
