"""A self-contained HTML file with inlined images, light and dark themes, and mobile layout."""

import base64

from rlx2_jax.reporting.markup import Html, tag

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5a5a5a; --paper: #ffffff;
  --line: #d8d8d8; --band: #f4f4f2; --warn: #fff4d6; --warn-ink: #5c4300; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #a8a8a8; --paper: #161616;
  --line: #3a3a3a; --band: #222222; --warn: #3a2f10; --warn-ink: #f3dfa8; --link: #8ec2ff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.25rem; margin-top: 3rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .35rem 1.1rem; padding: 0; list-style: none; }
nav a { display: inline-block; padding: .35rem 0; }
.warn { background: var(--warn); color: var(--warn-ink); padding: .6rem 1rem;
  border-radius: .4rem; }
.warn ul { margin: .3rem 0; padding-left: 1.2rem; }
figure { margin: 1.5rem 0; min-width: 0; }
figcaption, summary { margin-bottom: .4rem; }
summary { cursor: pointer; padding: .35rem 0; }
details { margin: 1.5rem 0; }
.scroll { overflow-x: auto; max-width: 100%; border: 1px solid var(--line); }
.scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
  width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { background: var(--band); font-weight: 600; }
th.group { text-align: center; border-left: 1px solid var(--line); }
th.group:first-child, th:first-child { text-align: left; border-left: 0; }
th[scope=row], thead tr:last-child th:first-child { position: sticky; left: 0;
  background: var(--band); font-weight: 500; min-width: 6.5rem; max-width: 12rem;
  white-space: normal; }
tbody tr:last-child > * { border-bottom: 0; }
td.missing { color: var(--soft); font-style: italic; }
.notes, .lead { color: var(--soft); font-size: .875rem; }
.notes p { margin: .35rem 0; }
.grid { display: grid; gap: 1rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); align-items: start; }
.grid figure { margin: 0; }
summary + .scroll { margin-top: .2rem; }
.grid figcaption { margin-top: .35rem; color: var(--soft); font-size: .8125rem; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: .3rem; }
.absent { border: 1px dashed var(--line); padding: 2rem 1rem; text-align: center;
  color: var(--soft); border-radius: .3rem; }
"""


def document(title: str, header: Html, main: Html) -> str:
    """The complete HTML file."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(_STYLE)),
    )
    page = tag("html", head, tag("body", header, main), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def image(title: str, png: bytes) -> Html:
    """An inlined PNG image."""
    data = base64.b64encode(png).decode()
    return tag("img", alt=title, src=f"data:image/png;base64,{data}")
