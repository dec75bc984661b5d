"""Engines of `topk`: one file each, and the parts that two share. Start in `matching.topk.engines.l2_scan`."""
