"""Engine `bif_paper`: the block based inverted file that the CIQ paper compares with, in its printed form.

It is `papers.ciq.ciq_paper` with the root as the only cell and one bucket: a proximity of 1 in place of that of a cell
(Chen et al., CIQ, section VII-A). What is left of it by an alpha near 1 is so much that hardly any block is skipped.
`block_inverted_file` is the stronger one, with bounds on texts that are not the paper's.
"""

from papers.ciq.ciq_paper import CiqPaper


class BifPaper(CiqPaper):
    """Blocks by keyword. A message costs a text relevance for each posting of its terms in blocks not skipped."""

    name = "bif_paper"
    depth = 0
    buckets = 1
