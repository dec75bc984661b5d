"""Baseline engines of `knn`: one file each."""
