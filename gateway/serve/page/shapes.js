// Places of subscriptions as GeoJSON, in degrees.

const EARTH_M = 6371008.8;
const CIRCLE_CORNERS = 72;
const RADIANS = Math.PI / 180;

export function circleRing(lon, lat, radiusM) {
  const angle = radiusM / EARTH_M;
  const [sin, cos] = [Math.sin(lat * RADIANS), Math.cos(lat * RADIANS)];
  const ring = [];
  for (let corner = 0; corner <= CIRCLE_CORNERS; corner += 1) {
    const bearing = (2 * Math.PI * corner) / CIRCLE_CORNERS;
    const latitude = Math.asin(sin * Math.cos(angle) + cos * Math.sin(angle) * Math.cos(bearing));
    const across = Math.atan2(
      Math.sin(bearing) * Math.sin(angle) * cos,
      Math.cos(angle) - sin * Math.sin(latitude),
    );
    ring.push([lon + across / RADIANS, latitude / RADIANS]);
  }
  return ring;
}

export function distanceM([lon, lat], [otherLon, otherLat]) {
  const half = (a, b) => Math.sin(((b - a) * RADIANS) / 2) ** 2;
  const part = half(lat, otherLat) + Math.cos(lat * RADIANS) * Math.cos(otherLat * RADIANS) * half(lon, otherLon);
  return 2 * EARTH_M * Math.asin(Math.min(1, Math.sqrt(part)));
}

// Halfway between two latitudes on the map, which is in Mercator's projection.
export function middleLatitude(south, north) {
  const up = (lat) => Math.asinh(Math.tan(lat * RADIANS));
  return Math.atan(Math.sinh((up(south) + up(north)) / 2)) / RADIANS;
}

function rectangleRing([west, south, east, north]) {
  const right = east < west ? east + 360 : east; // crosses the antimeridian
  return [[west, south], [right, south], [right, north], [west, north], [west, south]];
}

// Columns are as they were sent: a number may be a text there.
const asNumber = (value) => (typeof value === "string" ? Number(value) : value);

// The geometries of a subscription's columns: a region, or a point, or both.
export function geometriesOf(columns) {
  const found = [];
  if (Array.isArray(columns.region)) found.push({ type: "Polygon", coordinates: [rectangleRing(columns.region.map(asNumber))] });
  if (columns.circle) {
    const [lon, lat, radius] = [columns.circle.lon, columns.circle.lat, columns.circle.radius_m].map(asNumber);
    found.push({ type: "Polygon", coordinates: [circleRing(lon, lat, radius)] });
  }
  if (columns.polygon?.type) found.push(columns.polygon);
  const point = [columns.lon, columns.lat].map(asNumber);
  if (point.every(Number.isFinite)) {
    found.push({ type: "Point", coordinates: point });
    if (columns.radius_m) found.push({ type: "Polygon", coordinates: [circleRing(...point, asNumber(columns.radius_m))] });
  }
  return found;
}

// [west, south, east, north] of geometries; null without any.
export function boundsOf(geometries) {
  const box = [Infinity, Infinity, -Infinity, -Infinity];
  const visit = (part) => {
    if (typeof part[0] !== "number") return part.forEach(visit);
    box[0] = Math.min(box[0], part[0]);
    box[1] = Math.min(box[1], part[1]);
    box[2] = Math.max(box[2], part[0]);
    box[3] = Math.max(box[3], part[1]);
    return undefined;
  };
  for (const geometry of geometries) visit(geometry.coordinates);
  return box[0] === Infinity ? null : box;
}
