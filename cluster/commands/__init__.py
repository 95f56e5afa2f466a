"""`pac run`, `pac tune`, `pac submit`, `pac logits`."""

from cluster.commands.launch import engine_at

__all__ = ["engine_at"]
