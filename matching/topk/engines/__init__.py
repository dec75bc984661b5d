"""Engines of `topk`. Start in `matching.topk.engines.skype`."""
