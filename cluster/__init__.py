"""The engine on Ray."""

from cluster.session import connected, run_on_ray

__all__ = ["connected", "run_on_ray"]
