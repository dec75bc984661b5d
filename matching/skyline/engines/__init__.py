"""Engines of `skyline`: one file each, and the parts that two share. Start in `matching.skyline.engines.eager`."""
