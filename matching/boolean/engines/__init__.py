"""Engines of `boolean`, and the parts that several share. Start in `matching.boolean.engines.cell_term`."""
