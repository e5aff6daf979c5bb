"""An old name of `rlx2 evaluate`: python -m experiments.play --policy=FOLDER [flags]"""

import sys

from rlx2_jax.cli.main import alias

if __name__ == "__main__":
    sys.exit(alias("evaluate"))
