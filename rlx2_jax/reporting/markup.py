"""Escapes text for HTML, Markdown, CSV and file names. All escaping happens here.

Names of directories, lanes and environments and error messages are untrusted. Apply `printable`
when reading them, the other functions when writing files.
"""

import hashlib
import re
from collections.abc import Iterable
from html import escape

_VOID = ("br", "img", "link", "meta")
_LONGEST = 200  # characters of a name


class Html(str):
    """Escaped HTML, made by `tag` and `join`. Any other string is text and will be escaped."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Html:
    """An element with escaped text and attributes.

    `class_` is the attribute class, `aria_label` is aria-label; None leaves an attribute out.
    """
    given = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    end = "" if name in _VOID else f"</{name}>"
    return Html(f"<{name}{''.join(given)}>{join(children)}{end}")


def join(parts: Iterable[str]) -> Html:
    """Concatenates parts; those that are not `Html` are text."""
    return Html("".join(x if isinstance(x, Html) else escape(x) for x in parts))


def printable(value: object, longest: int = _LONGEST) -> str:
    """A name as one line of at most `longest` characters.

    Control characters, line breaks, bidirectional marks and invalid UTF-8 become escapes such as
    \\u001b, so different names stay different.
    """
    text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in str(value))
    return text if len(text) <= longest else f"{text[: longest - 10]}…{_digest(text)}"


def slug(text: str) -> str:
    """A name for a file and an anchor: ASCII letters, digits, `_`, `.` and `-`."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip(".")[:80]
    return plain if plain == text else f"{plain}-{_digest(text)}"


_MARKS = re.compile(
    r"[\\`*\[\]<>|~$]"
    r"|&(?=#|\w+;)"  # entities
    r"|(?<![^\W_])_|_(?![^\W_])"  # at word boundaries
    r"|:(?=//)|(?<=www)\."  # links
    r"|^[#+=-](?=[\s#=-]|$)|(?<=^\d)[.)](?=\s|$)"  # headings, lists, rules
)


def markdown(text: str) -> str:
    """Escapes text for a Markdown paragraph, heading or table cell."""
    return _MARKS.sub(lambda match: f"\\{match[0]}", " ".join(text.split()))


def csv_text(text: str) -> str:
    """A cell that spreadsheets do not interpret as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
