"""Window indexes of `topk`: one file each, and the parts they share. Start in `matching.topk.windows.segments`."""
