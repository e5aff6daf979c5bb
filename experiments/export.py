"""`rlx2 export` from a clone: python -m experiments.export [flags]"""

import sys

from rlx2_jax.cli.main import alias

if __name__ == "__main__":
    sys.exit(alias("export"))
