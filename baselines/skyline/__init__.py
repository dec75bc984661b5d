"""Baseline engines and window indexes of `skyline`, and common parts."""
