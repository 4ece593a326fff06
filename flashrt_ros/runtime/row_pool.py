"""Device memory for the rows of capsules."""

from __future__ import annotations

from flashrt_ros.runtime.device import Device
from flashrt_ros.runtime.page_pool import PagePool

PAGE_ROWS = 64
PAGE_BYTES = 64 << 10
"""A page has as many rows as fit into both: what a lineage holds is rounded up to pages."""


class RowPool(PagePool):
    """Pages of rows.

    A page that was given back may be taken and written at once: all copies of the control thread
    are enqueued on one lane, so an earlier reader has finished by then; the storage lane follows
    it, and who reads there waits for the end before pages are given back.

    Attributes:
        row_bytes: Size of a row.
        page_rows: Rows of a page.
        shrinks: How often the end of a segment was freed, so that other rows may come there.
    """

    what = "pages of rows"
    # A lineage grows in place while the page behind it is free.
    spread = True

    def __init__(self, device: Device, row_bytes: int, budget_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.page_rows = page_rows(row_bytes)
        page_bytes = self.page_rows * row_bytes
        super().__init__(device.allocate(budget_bytes // page_bytes * page_bytes), page_bytes)
        self.shrinks = 0


def page_rows(row_bytes: int) -> int:
    """Returns the rows of a page."""
    return max(1, min(PAGE_ROWS, PAGE_BYTES // row_bytes))
