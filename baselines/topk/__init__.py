"""Opponents of the engines and window indexes of `topk`, and what several share. Named in `baselines.kinds`."""
