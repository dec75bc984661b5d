// The map: subscriptions as outlines; messages in `points.js`, drawing in `drawing.js`.

import * as maplibre from "/page/vendor/maplibre-gl.mjs";
import { basemapData, styleOf } from "/page/basemap.js";
import { byId, show } from "/page/dom.js";
import { Points } from "/page/points.js";
import { boundsOf, geometriesOf } from "/page/shapes.js";

const collection = (geometries) => ({
  type: "FeatureCollection",
  features: geometries.map((geometry) => ({ type: "Feature", properties: {}, geometry })),
});

export class WorldMap {
  // onClick([lon, lat]) of a click that draws nothing; onPoint(seq) of a click on a message
  constructor({ onClick, onPoint }) {
    this.onClick = onClick;
    this.onPoint = onPoint;
    this.points = new Points();
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
      fadeDuration: 0, // a name that fades in draws the map again for every frame of it
      locale: { "Map.Title": "Map of subscriptions and messages" },
    });
    map.touchZoomRotate.disableRotation();
    map.addControl(new maplibre.NavigationControl({ showCompass: false }), "bottom-right");
    map.addControl(new maplibre.ScaleControl(), "bottom-left");
    await new Promise((resolve) => map.once("load", resolve));
    this.map = map;
    map.on("click", (event) => this.click(event));
    map.on("mousemove", (event) => map.getCanvas().classList.toggle("over-point", this.points.at(event.point) !== null));
    this.points.show(map);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const layer of makeStyle().layers) {
        for (const [name, value] of Object.entries(layer.paint)) map.setPaintProperty(layer.id, name, value);
      }
      this.points.recolour();
    });
    return true;
  }

  giveUp() {
    show(byId("no-map"));
    show(byId("draw-bar"), false);
    return false;
  }

  click(event) {
    const seq = this.points.at(event.point);
    if (seq !== null) this.onPoint(seq);
    else this.onClick([event.lngLat.wrap().lng, event.lngLat.lat]);
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

  // Above the middle: what is said about a message stands below.
  centre(lon, lat) {
    const offset = [0, -(this.map?.getCanvas().clientHeight ?? 0) / 4];
    this.map?.easeTo({ center: [lon, lat], zoom: Math.max(this.map.getZoom(), 5), offset });
  }
}
