"""`rlx2 render` from a clone: python -m experiments.render [flags]"""

import sys

from rlx2_jax.cli.main import alias

if __name__ == "__main__":
    sys.exit(alias("render"))
