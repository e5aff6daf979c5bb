"""Training runs: lanes, loops, evaluation, checkpoints, logs."""
