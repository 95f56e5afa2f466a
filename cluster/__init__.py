"""The engine on Ray."""

from cluster.session import connect, connected, run_on_ray

__all__ = ["connect", "connected", "run_on_ray"]
