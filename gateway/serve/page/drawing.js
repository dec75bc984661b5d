// Drawing a place on the map: terra-draw for rectangles, circles and polygons; a point is a click.

import { byId, element, show } from "/page/dom.js";
import { distanceM, middleLatitude } from "/page/shapes.js";

const HINTS = {
  rectangle: "Click one corner, then the opposite one.",
  circle: "Click the middle, then the border.",
  polygon: "Click the corners; click the first one again to close.",
  point: "Click the place.",
};

export class Drawing {
  // onDrawn(shape, coordinates): [w, s, e, n], { lon, lat, radius }, corners, or [lon, lat]
  constructor(world, onDrawn) {
    this.world = world;
    this.onDrawn = onDrawn;
    this.mode = null;
    this.draw = null;
    this.buttons = new Map();
  }

  start() {
    const { TerraDraw, TerraDrawRectangleMode, TerraDrawCircleMode, TerraDrawPolygonMode } = globalThis.terraDraw;
    const { TerraDrawMapLibreGLAdapter } = globalThis.terraDrawMaplibreGlAdapter;
    const modes = [TerraDrawRectangleMode, TerraDrawCircleMode, TerraDrawPolygonMode].map((Mode) => new Mode());
    this.draw = new TerraDraw({ adapter: new TerraDrawMapLibreGLAdapter({ map: this.world.map }), modes });
    this.draw.start();
    this.draw.on("finish", (id) => this.finish(id));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.mode) this.stop();
    });
  }

  // Offer the shapes of a kind of subscription.
  offer(shapes) {
    this.stop();
    this.buttons.clear();
    for (const shape of shapes) {
      const button = element("button", { type: "button", className: "tool" }, shape);
      button.setAttribute("aria-pressed", "false");
      button.dataset.shape = shape;
      button.addEventListener("click", () => (this.mode === shape ? this.stop() : this.begin(shape)));
      this.buttons.set(shape, button);
    }
    byId("draw-bar").replaceChildren(...this.buttons.values());
  }

  begin(shape) {
    this.stop();
    this.mode = shape;
    this.buttons.get(shape)?.setAttribute("aria-pressed", "true");
    byId("map-hint").textContent = `${HINTS[shape]} Escape ends drawing.`;
    show(byId("map-hint"));
    if (shape !== "point") this.draw?.setMode(shape);
  }

  stop() {
    this.buttons.get(this.mode)?.setAttribute("aria-pressed", "false");
    this.mode = null;
    show(byId("map-hint"), false);
    this.draw?.setMode("static");
    this.draw?.clear();
  }

  // A click on the map; true if it was for drawing.
  click(place) {
    if (this.mode === "point") {
      this.onDrawn("point", place);
      this.stop();
      return true;
    }
    return this.mode !== null || performance.now() - this.finishedAt < 300;
  }

  finish(id) {
    const feature = this.draw.getSnapshotFeature(id);
    const shape = this.mode;
    this.finishedAt = performance.now(); // the click that ends a shape is none of its own
    if (feature && shape) {
      const ring = feature.geometry.coordinates[0];
      if (shape === "polygon") this.onDrawn(shape, ring.slice(0, -1));
      else {
        const [lons, lats] = [ring.map((corner) => corner[0]), ring.map((corner) => corner[1])];
        const box = [Math.min(...lons), Math.min(...lats), Math.max(...lons), Math.max(...lats)];
        if (shape === "rectangle") this.onDrawn(shape, box);
        else {
          const [lon, lat] = [(box[0] + box[2]) / 2, middleLatitude(box[1], box[3])];
          this.onDrawn(shape, { lon, lat, radius: distanceM([lon, lat], [box[2], lat]) });
        }
      }
    }
    setTimeout(() => this.stop()); // not while terra-draw still handles the click
  }
}
