"""The k best messages of a window, by place and words. Start in `matching.topk.room`."""
