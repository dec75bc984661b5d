// The map: subscriptions as outlines, messages as points that light up, drawing in `drawing.js`.

import * as maplibre from "/page/vendor/maplibre-gl.mjs";
import { basemapData, styleOf } from "/page/basemap.js";
import { byId, show } from "/page/dom.js";
import { boundsOf, geometriesOf } from "/page/shapes.js";

const LIT_MS = 2500;
const MOST_POINTS = 1000;
const MOST_LIT = 60; // large circles, which a machine without a graphics card draws slowly
// Milliseconds between two drawings of the points: the more, the slower frames come.
const DRAW_MS = { least: 100, most: 500 };
const SLOW_FRAME_MS = 40;

const collection = (geometries) => ({
  type: "FeatureCollection",
  features: geometries.map((geometry) => ({ type: "Feature", properties: {}, geometry })),
});

export class WorldMap {
  // onClick([lon, lat]) of a click that draws nothing; onPoint(seq) of a click on a message
  constructor({ onClick, onPoint }) {
    this.onClick = onClick;
    this.onPoint = onPoint;
    this.points = new Map(); // seq -> { lon, lat, since }
    this.changed = false;
    this.drawnAt = this.frameAt = 0;
    this.everyMs = DRAW_MS.least;
    this.map = null;
    this.ready = this.start();
  }

  async start() {
    if (!document.createElement("canvas").getContext("webgl2")) return this.giveUp();
    const data = await basemapData();
    const makeStyle = () => styleOf(data);
    const map = new maplibre.Map({
      container: "map",
      style: makeStyle(),
      center: [10, 25],
      zoom: 1.2,
      maxZoom: 16,
      dragRotate: false,
      pitchWithRotate: false,
      attributionControl: { compact: true },
      locale: { "Map.Title": "Map of subscriptions and messages" },
    });
    map.touchZoomRotate.disableRotation();
    map.addControl(new maplibre.NavigationControl({ showCompass: false }), "bottom-right");
    map.addControl(new maplibre.ScaleControl(), "bottom-left");
    await new Promise((resolve) => map.once("load", resolve));
    this.map = map;
    map.on("click", (event) => this.click(event));
    map.on("mousemove", "points", () => map.getCanvas().classList.add("over-point"));
    map.on("mouseleave", "points", () => map.getCanvas().classList.remove("over-point"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const layer of makeStyle().layers) {
        for (const [name, value] of Object.entries(layer.paint)) map.setPaintProperty(layer.id, name, value);
      }
    });
    return true;
  }

  giveUp() {
    show(byId("no-map"));
    show(byId("draw-bar"), false);
    return false;
  }

  click(event) {
    const [hit] = this.map.queryRenderedFeatures(event.point, { layers: ["points"] });
    if (hit) this.onPoint(hit.properties.seq);
    else this.onClick([event.lngLat.wrap().lng, event.lngLat.lat]);
  }

  // A message lights up; of many the newest stay.
  light(seq, lon, lat) {
    this.put(seq, lon, lat, performance.now());
  }

  // A message of a result: a point, which does not light up.
  place(seq, lon, lat) {
    if (!this.points.has(seq)) this.put(seq, lon, lat, -LIT_MS);
  }

  put(seq, lon, lat, since) {
    this.points.delete(seq);
    this.points.set(seq, { lon, lat, since });
    if (this.points.size > MOST_POINTS) this.points.delete(this.points.keys().next().value);
    this.changed = true;
  }

  // Once a frame at most: one new set of points.
  draw(now) {
    const wanted = this.everyMs * (now - this.frameAt > SLOW_FRAME_MS ? 1.5 : 0.95);
    this.everyMs = Math.min(DRAW_MS.most, Math.max(DRAW_MS.least, wanted));
    this.frameAt = now;
    if (!this.map || !this.changed || now - this.drawnAt < this.everyMs) return;
    this.drawnAt = now;
    let lit = false;
    const features = [];
    let newer = this.points.size;
    for (const [seq, { lon, lat, since }] of this.points) {
      newer -= 1;
      const age = newer < MOST_LIT ? Math.min(1, Math.max(0, (now - since) / LIT_MS)) : 1;
      lit ||= age < 1;
      features.push({ type: "Feature", properties: { seq, age }, geometry: { type: "Point", coordinates: [lon, lat] } });
    }
    this.changed = lit;
    this.map.getSource("points").setData({ type: "FeatureCollection", features });
  }

  showSubscriptions(all) {
    this.map?.getSource("subscriptions").setData(collection(all.flatMap(geometriesOf)));
  }

  showPicked(columns) {
    this.map?.getSource("picked").setData(collection(columns ? geometriesOf(columns) : []));
  }

  showDrawn(columns) {
    this.map?.getSource("drawn").setData(collection(columns ? geometriesOf(columns) : []));
  }

  // Show a subscription, and the messages of its result.
  fit(columns, rows) {
    const places = rows.map(({ lon, lat }) => ({ type: "Point", coordinates: [lon, lat] }));
    const box = boundsOf([...geometriesOf(columns), ...places]);
    if (!box || !this.map) return;
    this.map.fitBounds(box, { padding: 60, maxZoom: 9, animate: !matchMedia("(prefers-reduced-motion: reduce)").matches });
  }

  centre(lon, lat) {
    this.map?.easeTo({ center: [lon, lat], zoom: Math.max(this.map.getZoom(), 5) });
  }
}
