// The map's style: land, borders and cities of the files beside it, in the colours of the style sheet. Streets: `tiles.js`.

import { backgroundOf, landUntil, tileLayers, tileSources } from "/page/tiles.js";

const VENDOR = "/page/vendor/";

const COLOURS = ["water", "land", "border", "place", "halo", "accent", "hot"];

export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--map-${name}`).trim()]));
}

// A ring or line that crosses the antimeridian goes on beyond 180; one around a pole is closed along it.
function unrolled(line) {
  let turns = 0;
  const found = line.map(([lon, lat], at) => {
    const step = at ? lon - line[at - 1][0] : 0;
    if (Math.abs(step) > 180) turns -= Math.sign(step) * 360;
    return [lon + turns, lat];
  });
  if (turns) found.push([found.at(-1)[0], -90], [found[0][0], -90], found[0]);
  return found;
}

function unroll(geometry) {
  const visit = (part) => (typeof part[0][0] === "number" ? unrolled(part) : part.map(visit));
  return { ...geometry, coordinates: visit(geometry.coordinates) };
}

export async function basemapData() {
  const [world, cities, { tiles }] = await Promise.all(
    [`${VENDOR}countries-50m.json`, `${VENDOR}cities.json`, "/page/map.json"].map((path) => fetch(path).then((answer) => answer.json())),
  );
  const { countries } = world.objects;
  return {
    tiles,
    land: unroll(globalThis.topojson.merge(world, world.objects.land.geometries)),
    borders: unroll(globalThis.topojson.mesh(world, countries, (one, other) => one !== other)),
    cities: {
      type: "FeatureCollection",
      features: cities.map(([name, lon, lat, inhabitants]) => ({
        type: "Feature",
        properties: { name, inhabitants },
        geometry: { type: "Point", coordinates: [lon, lat] },
      })),
    },
  };
}

const EMPTY = { type: "FeatureCollection", features: [] };

export function styleOf({ tiles, land, borders, cities }, dark) {
  const paint = colours();
  const geojson = (data, more = {}) => ({ type: "geojson", data, ...more });
  return {
    version: 8,
    sources: {
      ...tileSources(tiles),
      land: geojson(land),
      borders: geojson(borders),
      cities: geojson(cities, { attribution: "Natural Earth, GeoNames" }),
      subscriptions: geojson(EMPTY),
      picked: geojson(EMPTY),
      drawn: geojson(EMPTY),
    },
    layers: [
      { id: "water", type: "background", paint: { "background-color": backgroundOf(tiles, paint) } },
      { id: "land", type: "fill", source: "land", ...landUntil(tiles), paint: { "fill-color": paint.land } },
      { id: "shore", type: "line", source: "land", ...landUntil(tiles), paint: { "line-color": paint.border, "line-width": 0.8 } },
      { id: "borders", type: "line", source: "borders", ...landUntil(tiles), paint: { "line-color": paint.border, "line-width": 0.6 } },
      ...tileLayers(tiles, paint, dark),
      ...areaLayers("subscriptions", paint.accent, 0.06, 1),
      ...areaLayers("picked", paint.accent, 0.16, 2.5),
      ...areaLayers("drawn", paint.hot, 0.12, 2),
      {
        id: "cities",
        type: "symbol",
        source: "cities",
        ...(tiles ? { maxzoom: 5 } : {}), // tiles have names of their own
        layout: {
          "text-field": ["get", "name"],
          "text-size": ["interpolate", ["linear"], ["zoom"], 1, 10, 8, 13],
          "text-font": ["system-ui, sans-serif"],
          "symbol-sort-key": ["-", 0, ["get", "inhabitants"]],
          "text-padding": 12,
        },
        filter: [">=", ["get", "inhabitants"], ["step", ["zoom"], 8e6, 2, 4e6, 3, 2e6, 4, 1e6, 5, 0]],
        paint: { "text-color": paint.place, "text-halo-color": paint.halo, "text-halo-width": 1.2 },
      },
    ],
  };
}

function areaLayers(source, colour, opacity, width) {
  const kind = (type) => ["==", ["geometry-type"], type];
  return [
    { id: `${source}-area`, type: "fill", source, filter: kind("Polygon"), paint: { "fill-color": colour, "fill-opacity": opacity } },
    { id: `${source}-edge`, type: "line", source, filter: kind("Polygon"), paint: { "line-color": colour, "line-width": width, "line-opacity": 0.8 } },
    {
      id: `${source}-point`,
      type: "circle",
      source,
      filter: kind("Point"),
      paint: { "circle-color": "transparent", "circle-radius": 4 + 2 * width, "circle-stroke-color": colour, "circle-stroke-width": width },
    },
  ];
}
