"""The fault campaign: kills, damaged files, failing writes and memory peaks of whole runs.

python -m tests.faults --help
"""
