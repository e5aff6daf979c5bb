"""Replay: a circular buffer that can be trimmed, and n-step returns."""
