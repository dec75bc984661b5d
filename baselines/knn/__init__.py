"""Baseline engines of `knn`: one file each. Named in `matching.kinds`."""
