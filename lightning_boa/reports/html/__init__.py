"""One self-contained page about a run: no script, no network, light and dark, for screen and paper. Needs jinja2."""

from __future__ import annotations

from lightning_boa.reports.html.page import page_of

__all__ = ["page_of"]
