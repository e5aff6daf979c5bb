"""Reads the results of sweeps and compares them with the paper's numbers."""
