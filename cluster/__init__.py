"""The engine on Ray."""

from cluster.session import Session, connected, run_on_ray

__all__ = [
    "Session",
    "connected",
    "run_on_ray",
]
