"""An HTML page that a notebook displays in a frame, so that page and notebook do not mix."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

__all__ = ["NotebookPage"]


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """An HTML page that a notebook displays where this object is the last expression of a cell.

    html: the whole page. height: the height of its frame, in pixels.
    """

    html: str
    height: int = 900

    def _repr_html_(self) -> str:
        # Sandboxed without an origin: neither the notebook nor the page can reach into the other.
        return (
            f'<iframe srcdoc="{escape(self.html)}" width="100%" height="{self.height}" '
            'sandbox="allow-scripts allow-downloads" title="anchor report" '
            'style="border:0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Shown({len(self.html):,} characters of HTML)"
