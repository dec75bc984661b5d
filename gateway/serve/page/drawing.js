// Drawing a place on the map: terra-draw for rectangles, circles and polygons; a point is a click.

import { byId, element, show } from "/page/dom.js";
import { boundsOf, distanceM, middleLatitude } from "/page/shapes.js";

const HINTS = {
  rectangle: "Click one corner, then the opposite one.",
  circle: "Click the middle, then the border.",
  polygon: "Click the corners, then the first one again.",
  point: "Click the place.",
};
const LEAST_M = 1; // a shape that is smaller was drawn by two clicks on one place
const fingers = matchMedia("(hover: none)");

function hintOf(shape) {
  const hint = HINTS[shape];
  return fingers.matches ? `${hint.replace("Click", "Tap")} Tap ${shape} again to stop.` : `${hint} Escape ends drawing.`;
}

// A finger moves nothing before it taps, and shapes are as large as the last move: here a click is a move, too.
const tapped = (Mode) => class extends Mode {
  onClick(event) {
    this.onMouseMove(event);
    super.onClick(event);
  }
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
    const modes = [TerraDrawRectangleMode, TerraDrawCircleMode, TerraDrawPolygonMode].map((Mode) => new (tapped(Mode))());
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

  begin(shape, before = "") {
    this.stop();
    this.world.begun = true;
    this.mode = shape;
    this.buttons.get(shape)?.setAttribute("aria-pressed", "true");
    byId("map-hint").textContent = before + hintOf(shape);
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
    let next = () => this.stop();
    if (feature && shape) {
      const ring = feature.geometry.coordinates[0];
      const [west, south, east, north] = boundsOf([feature.geometry]);
      const middle = [(west + east) / 2, middleLatitude(south, north)];
      const radius = distanceM(middle, [east, middle[1]]);
      if (radius < LEAST_M || distanceM([west, south], [west, north]) < LEAST_M) next = () => this.begin(shape, "That had no size. ");
      else if (shape === "polygon") this.onDrawn(shape, ring.slice(0, -1));
      else if (shape === "rectangle") this.onDrawn(shape, [west, south, east, north]);
      else this.onDrawn(shape, { lon: middle[0], lat: middle[1], radius });
    }
    setTimeout(next); // not while terra-draw still handles the click
  }
}
