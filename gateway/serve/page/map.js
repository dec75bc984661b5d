// The map: subscriptions as outlines; messages in `points.js`, drawing in `drawing.js`.

import * as maplibre from "/page/vendor/maplibre-gl.mjs";
import { basemapData, styleOf } from "/page/basemap.js";
import { byId, show } from "/page/dom.js";
import { Points } from "/page/points.js";
import { boundsOf, geometriesOf } from "/page/shapes.js";
import { isOfTiles } from "/page/tiles.js";

const STREETS_FROM = 8; // from this zoom on the page's own map has nothing but large cities
const NO_STREETS = "This map has no streets: the server names no tiles (skyray serve --set server.tiles=URL).";
const NEAREST = 15;
const MERCATOR = 85; // degrees of latitude that the map shows

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
    this.begun = false; // whether it shows what there is, or what the user has chosen
    this.failing = ""; // the tiles' host, if it does not answer
    this.ready = this.start();
  }

  async start() {
    if (!document.createElement("canvas").getContext("webgl2")) return this.giveUp();
    const data = await basemapData();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const makeStyle = () => styleOf(data, scheme.matches);
    this.tiles = data.tiles;
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
    // without this listener the library writes errors to the console
    map.on("error", (event) => {
      if (isOfTiles(event)) this.failing = new URL(this.tiles.url).host;
      else console.error(event.error);
      this.note();
    });
    await new Promise((resolve) => map.once("load", resolve));
    this.map = map;
    this.note();
    map.on("zoomend", () => this.note());
    map.on("sourcedata", (event) => {
      if (!this.failing || !isOfTiles(event) || event.tile?.state !== "loaded") return;
      this.failing = "";
      this.note();
    });
    map.on("movestart", (event) => {
      if (event.originalEvent) this.begun = true;
    });
    map.on("click", (event) => this.click(event));
    map.on("mousemove", (event) => map.getCanvas().classList.toggle("over-point", this.points.at(event.point) !== null));
    this.points.show(map);
    scheme.addEventListener("change", () => {
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

  // What the map lacks where it is looked at.
  note() {
    const lacking = this.tiles ? "" : NO_STREETS;
    const near = this.map !== null && this.map.getZoom() >= STREETS_FROM;
    const text = this.failing ? `The tiles of ${this.failing} do not load.` : near ? lacking : "";
    byId("map-note").textContent = text;
    show(byId("map-note"), text !== "");
  }

  // Show a subscription, and the messages of its result.
  fit(columns, rows) {
    this.begun = true;
    this.show(boxOf([columns], rows), { animate: !matchMedia("(prefers-reduced-motion: reduce)").matches });
  }

  // The first view, once there is something: the subscriptions, if they are anywhere in particular; else messages, or
  // the world of the stream, [west, south, east, north].
  begin(all, rows, world) {
    if (this.begun || !this.map) return;
    const [ofAll, ofRows] = [boxOf(all, []), boxOf([], rows)];
    const box = ofAll && !isWide(ofAll) ? ofAll : (ofRows ?? ofAll);
    this.begun = box !== null;
    this.show(box ?? (world && !isWide(world) ? world : null), { animate: false });
  }

  show(box, options) {
    if (!box || !this.map) return;
    const [west, south, east, north] = box;
    const { clientWidth, clientHeight } = this.map.getCanvas();
    const isPoint = west === east && south === north;
    this.map.fitBounds([west, Math.max(south, -MERCATOR), east, Math.min(north, MERCATOR)], {
      padding: Math.min(60, clientWidth / 8, clientHeight / 8),
      maxZoom: isPoint && !this.tiles ? STREETS_FROM + 1 : NEAREST,
      ...options,
    });
  }

  // Above the middle: what is said about a message stands below.
  centre(lon, lat) {
    const offset = [0, -(this.map?.getCanvas().clientHeight ?? 0) / 4];
    this.map?.easeTo({ center: [lon, lat], zoom: Math.max(this.map.getZoom(), 5), offset });
  }
}

// [west, south, east, north] of subscriptions and messages; null without any.
function boxOf(all, rows) {
  return boundsOf([...all, ...rows.map(({ lon, lat }) => ({ lon, lat }))].flatMap(geometriesOf));
}

const isWide = ([west, , east]) => east - west > 180;
