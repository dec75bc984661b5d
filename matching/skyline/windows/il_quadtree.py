"""The inverted linear quadtree: a fine quadtree for each keyword; for comparison.

"Linear" because no cell points to another: each is found by its keyword and its number along the Z-order. Fast to ask,
one keyword at a time; an arrival goes down as many quadtrees as it has terms. After Zhang et al., "Inverted linear
quadtree: efficient top k spatial keyword search". All that does something stands in
`matching.skyline.windows.keyword_quadtrees`.
"""

from matching.skyline.windows.keyword_quadtrees import CellWindow


class IlQuadtree(CellWindow):
    """Quadtrees by keyword with small cells."""

    name = "il_quadtree"
    capacity = 16
