"""Builds the C++ kernels if possible; everything else is in pyproject.toml.

Without a compiler or jaxlib's headers the package still installs: the kernels are then built on
first use, or networks run in plain XLA (see rlx2_jax/kernels/native.py).
"""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup

HERE = Path("rlx2_jax") / "kernels"


def extensions() -> list[Extension]:
    try:
        import jaxlib
    except ImportError:
        return []
    described = importlib.util.spec_from_file_location("building", HERE / "building.py")
    assert described is not None and described.loader is not None
    building = importlib.util.module_from_spec(described)
    described.loader.exec_module(building)
    return [
        Extension(
            "rlx2_jax.kernels._kernels",
            [str(HERE / "kernels.cc")],
            depends=[str(HERE / name) for name in building.SOURCES],
            include_dirs=[str(Path(jaxlib.__file__).parent / "include")],
            define_macros=[("RLX2_BUILD", f'"{building.source_hash()}"')],
            extra_compile_args=list(building.FLAGS),
            language="c++",
            optional=True,
        )
    ]


setup(ext_modules=extensions())
