"""Baseline engines of `boolean`: one file each. Named in `baselines.kinds`."""
