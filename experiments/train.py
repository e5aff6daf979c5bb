"""`rlx2 train` from a clone: python -m experiments.train [flags]"""

import sys

from rlx2_jax.cli.main import alias

if __name__ == "__main__":
    sys.exit(alias("train"))
