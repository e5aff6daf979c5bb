"""Sphinx configuration of the documentation site: `./dev site` builds it offline."""

import logging
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_extensions")]

from rlx2_jax import __version__  # noqa: E402

project = "rlx2_jax"
author = "the rlx2_jax authors"
release = version = __version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "docstrings",
    "mathml",
    "mermaid",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
# The index lists some pages by glob patterns, which may have no matches.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: "didn't match any documents" not in str(record.msg)
)

myst_enable_extensions = ["dollarmath", "fieldlist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # types are in the signature
default_role = "py:obj"  # `name` in a docstring links to it where it is documented
# Every reference to a name of this package must resolve; other packages' would need the network.
nitpick_ignore_regex = [
    ("py:.*", r"(?!rlx2_jax\.).*"),
    ("py:class", r"rlx2_jax\.types\.AnyArray|rlx2_jax\.options\.Record"),  # type variables
]

html_theme = "furo"
html_title = f"rlx2_jax {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
