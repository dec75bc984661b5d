"""The messages of a window that no other dominates, by place and words. Start in `matching.skyline.room`."""
