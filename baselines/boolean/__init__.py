"""Baseline engines of `boolean`: one file each. Named in `matching.kinds`."""
