"""Window indexes of `skyline`: one file each, and common parts. Start in `matching.skyline.windows.grid`."""
