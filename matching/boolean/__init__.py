"""Kind `boolean`: every message that meets a region and carries all keywords, each of them once.

A subscription has a closed rectangle, which may cross the antimeridian, and keywords, of which a message must have all
(or at least one, `match`). A message may be a point or a rectangle. There is no standing result: a match is emitted
when the message comes, no window is searched, and a subscription may be on any task.

Engines (`engines/`):

- `cell_term`, the default, our own: postings by level, cell and rarest keyword. Fastest in nearly every measurement
  (`docs/performance.md`), and it takes changes one by one, where the paper's indexes are built in parts. Filters
  leave marks on its postings, by which most messages fall that a condition refuses (`matching.storage.marks`).
  One without keywords stands there under the term that every visible message has, or under the values or intervals of
  an attribute that it requires (`selection.py`).
- `lfilter`, and each of its two halves, `mbr_trie` and `pt_quadtree`: the system of Yu, Li and Feng (`papers/lfilter`).

Read `operator.py` first (subscriptions change inside a batch), then `engine.py` (what every engine offers), then
`engines/cell_term.py` and the index under it, `matching.storage.cell_term`.
"""
