"""`python -m rlx2_jax` runs the command `rlx2`."""

import sys

from rlx2_jax.cli.main import script

if __name__ == "__main__":
    sys.exit(script())
