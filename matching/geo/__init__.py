"""Shapes and distances on the earth: circles, polygons and metres, exact.

`sphere` has unit vectors, metres and the closed test of a circle; `polygons` has rings laid out flat and the exact test
of a point; both are NumPy and Numba. `shapes` checks what subscriptions say and is the one file that imports shapely.

    shape = shapes.read_polygon({"type": "Polygon", "coordinates": [[[5, 52], [6, 52], [6, 53], [5, 52]]]})
    table = polygons.lay_out([shape.rings])
    polygons.covered(table, np.array([0]), np.array([5.5]), np.array([52.2]))      # bool[1]: inside

    vectors = sphere.unit_vectors(lon, lat)                     # once for each message
    centre, limit = sphere.unit_vector(5.0, 52.0), sphere.chord_limit(2_500.0)
    sphere.within(vectors, np.array(centre), limit)             # bool[n]

Rules are cited as "spec G1" (docs/spec.md); `matching.naive_shapes` is the oracle.
"""
