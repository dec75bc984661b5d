"""Engines of `boolean`: one file each, and the parts that two share. Start in `matching.boolean.engines.cell_term`."""
