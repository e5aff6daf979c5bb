"""From pure functions to programs that run: compilation, loops, evaluation, logs, checkpoints."""
