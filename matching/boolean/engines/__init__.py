"""Engines of `boolean`: one file each, and the parts that two share. Start in `matching.storage.cell_term`."""
