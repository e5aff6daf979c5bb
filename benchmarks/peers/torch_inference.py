"""Times a dense actor in PyTorch, batch 1, one thread, called from Python with NumPy arrays.

    python torch_inference.py 11 256 256 3

Prints "ready", then the seconds per call for each number of calls read from stdin.
"""

import sys
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
sizes = [int(n) for n in sys.argv[1:]]
parts: list[nn.Module] = []
for i, (n_in, n_out) in enumerate(pairwise(sizes)):
    parts += [nn.Linear(n_in, n_out), nn.ReLU() if i + 2 < len(sizes) else nn.Tanh()]
actor = nn.Sequential(*parts).eval()
observations = np.random.default_rng(0).normal(size=(64, 1, sizes[0])).astype(np.float32)
print("ready", torch.__version__, flush=True)
with torch.inference_mode():
    for line in sys.stdin:
        calls = int(line)
        start = time.perf_counter()
        for i in range(calls):
            actor(torch.from_numpy(observations[i % 64])).numpy()
        print((time.perf_counter() - start) / calls, flush=True)
