"""The paper's half-cheetah experiments, and ours beside them: `python scripts/halfcheetah --help`."""
