"""Robotics: rollouts, dynamics ensembles, trajectory tubes and guarded planning."""
