"""I3, the integrated inverted index: a plain list for each keyword, a quadtree only for the dense ones; for comparison.

A keyword is dense, in all the world or in one cell, once more messages have it than a page holds. After Zhang, Tan and
Tung, "Scalable top-k spatial keyword search", whose summaries for keywords in conjunction are of no use to queries by
any keyword and left out. All that does something stands in `matching.skyline.windows.keyword_quadtrees`.
"""

from matching.skyline.windows.keyword_quadtrees import CellWindow


class I3(CellWindow):
    """Quadtrees by keyword with cells the size of a page."""

    name = "i3"
    capacity = 128
