"""Mermaid diagrams. Browsers that can load the script draw them; others show the source."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SCRIPT = "https://cdn.jsdelivr.net/npm/mermaid@11/dist/mermaid.min.js"


class Mermaid(SphinxDirective):
    """The directive `mermaid`, like GitHub's fence of that name."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        return [nodes.literal_block(source, source, language="text", classes=["mermaid-source"])]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mermaid", Mermaid)
    app.add_config_value("mermaid_script", SCRIPT, "html", str)
    app.connect("html-page-context", _add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _add_script(app: Sphinx, page: str, template: str, context: Any, doctree: Any) -> None:
    """Adds the scripts to pages that have a diagram."""
    del page, template, context
    if doctree is None:
        return
    blocks = doctree.findall(nodes.literal_block)
    if any("mermaid-source" in block["classes"] for block in blocks):
        app.add_js_file("mermaid.js", **{"data-script": app.config.mermaid_script})
