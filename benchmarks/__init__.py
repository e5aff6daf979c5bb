"""Benchmarks of speed and learning, compared with other implementations."""
