"""Opponents of the engines of `boolean`: one file each. Named in `baselines.kinds`."""
