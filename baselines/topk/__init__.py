"""Baseline engines and window indexes of `topk`, and common parts."""
