"""Replay: a circular buffer that forgets old data, and n-step returns."""
