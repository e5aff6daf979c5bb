"""Reads what sweeps leave behind and sets it beside the paper's numbers."""
