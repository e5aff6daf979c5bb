"""Equations as MathML, which browsers render without scripts, fonts or network access."""

from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx


def inline(translator: Any, node: nodes.Element) -> None:
    """Writes an inline formula."""
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def display(translator: Any, node: nodes.Element) -> None:
    """Writes a displayed formula."""
    formula = latex2mathml.tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    app.config.html_math_renderer = "mathml"  # pyright: ignore[reportAttributeAccessIssue]
    return {"parallel_read_safe": True, "parallel_write_safe": True}
