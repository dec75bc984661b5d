"""Baseline engines of `decay`: one file each."""
