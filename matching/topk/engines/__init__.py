"""Engines of `topk`: one file each, and the parts that two share. Start in `baselines.topk.l2_scan`."""
