"""Baseline engines of `decay`: one file each. Named in `matching.kinds`."""
