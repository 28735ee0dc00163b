"""A run of checks, each in a process of its own, and what came of it."""
