// The tile source that the server names: pictures, or vector tiles with layers as OpenMapTiles or Shortbread name them.

const SOURCE = "tiles";
const VECTOR_FROM = 6; // nearer than this the land is what the tiles have, not the coarse one of the page
const DETAIL = 14; // the last zoom that such tiles are made for; nearer they are drawn larger

// The source, or none, by its name in the style.
export function tileSources(tiles) {
  if (!tiles) return {};
  const attribution = tiles.credit ? escaped(tiles.credit) : undefined;
  const kind = tiles.vector ? { type: "vector", maxzoom: DETAIL } : { type: "raster", tileSize: 256, maxzoom: 19 };
  return { [SOURCE]: { ...kind, tiles: [tiles.url], attribution } };
}

// The map library takes a credit as markup.
function escaped(text) {
  return new XMLSerializer().serializeToString(document.createTextNode(text));
}

export const isOfTiles = (event) => event.sourceId === SOURCE;

// What is drawn below tiles of this kind: all of the page's own land, or only far away.
export const landUntil = (tiles) => (tiles?.vector ? { maxzoom: VECTOR_FROM } : {});
export const backgroundOf = (tiles, { water, land }) => (tiles?.vector ? ["step", ["zoom"], water, VECTOR_FROM, land] : water);

export function tileLayers(tiles, paint, dark) {
  if (!tiles) return [];
  if (!tiles.vector) {
    const dimmed = dark ? { "raster-brightness-max": 0.65, "raster-saturation": -0.3 } : { "raster-brightness-max": 1, "raster-saturation": 0 };
    return [{ id: SOURCE, type: "raster", source: SOURCE, paint: dimmed }];
  }
  const layer = (name, type, more) => ({ id: `${SOURCE}-${name}`, type, source: SOURCE, "source-layer": name, ...more });
  const both = (names, type, more) => names.map((name) => layer(name, type, more));
  const text = { "text-color": paint.place, "text-halo-color": paint.halo, "text-halo-width": 1.2 };
  const named = { "text-field": ["coalesce", ["get", "name"], ""], "text-font": ["system-ui, sans-serif"] };
  const width = ["interpolate", ["exponential", 1.5], ["zoom"], 6, 0.5, 12, 1.2, 16, 6];
  return [
    ...both(["water", "water_polygons", "ocean"], "fill", { minzoom: VECTOR_FROM, paint: { "fill-color": paint.water } }),
    ...both(["building", "buildings"], "fill", { minzoom: 13, paint: { "fill-color": paint.border, "fill-opacity": 0.3 } }),
    ...both(["boundary", "boundaries"], "line", { minzoom: VECTOR_FROM, paint: { "line-color": paint.border, "line-width": 0.6, "line-dasharray": [3, 2] } }),
    ...both(["transportation", "streets"], "line", { minzoom: VECTOR_FROM, paint: { "line-color": paint.border, "line-width": width } }),
    ...both(["transportation_name", "street_labels"], "symbol", { minzoom: 12, layout: { ...named, "symbol-placement": "line", "text-size": 12 }, paint: text }),
    ...both(["place", "place_labels"], "symbol", { minzoom: VECTOR_FROM, layout: { ...named, "text-size": 13, "text-padding": 8 }, paint: text }),
  ];
}
