"""Opponents of the engines and window indexes of `skyline`, and what several share. Named in `baselines.kinds`."""
