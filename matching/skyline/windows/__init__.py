"""Window indexes of `skyline`: one file each, and what they share. Start in `matching.skyline.windows.inverted`."""
