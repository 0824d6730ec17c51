"""Refine imitation-learned robot policies by reinforcement learning, prove it, deploy them safely."""
