"""Baseline engines and window indexes of `topk`, and common parts. Named in `matching.kinds`."""
