"""The k nearest messages since registration. Start in `matching.knn.room`."""
