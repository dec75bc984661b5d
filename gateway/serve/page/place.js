// The place of the form: fields that drawing fills, and that can be typed; their columns, or what is wrong with them.

import { byId, degrees, element, numberIn, show } from "/page/dom.js";

export const SHAPES_OF = {
  boolean: ["rectangle", "circle", "polygon"],
  topk: ["point"],
  decay: ["point"],
  knn: ["point"],
  skyline: ["rectangle"],
};

const FIELDS = ["west", "south", "east", "north", "lon", "lat", "radius", "corners"];

export class BadField extends Error {
  constructor(id, message) {
    super(message);
    this.id = id;
  }
}

export class Place {
  // onChange() after each change of the fields
  constructor(onChange) {
    this.onChange = onChange;
    byId("shape").addEventListener("change", () => this.changeShape());
    for (const id of FIELDS) byId(id).addEventListener("input", () => this.onChange());
  }

  get shape() {
    return byId("shape").value;
  }

  offer(kind) {
    const before = this.shape;
    const shapes = SHAPES_OF[kind];
    byId("shape").replaceChildren(...shapes.map((name) => element("option", { value: name }, name)));
    if (shapes.includes(before)) byId("shape").value = before;
    show(byId("shape").parentElement, shapes.length > 1);
    this.changeShape();
  }

  changeShape() {
    for (const part of document.querySelectorAll("[data-shapes]")) {
      show(part, part.dataset.shapes.split(" ").includes(this.shape));
    }
    this.onChange();
  }

  fill(shape, found) {
    if (this.shape !== shape) {
      byId("shape").value = shape;
      this.changeShape();
    }
    const write = (id, value) => {
      byId(id).value = degrees(value);
    };
    if (shape === "rectangle") ["west", "south", "east", "north"].forEach((id, at) => write(id, found[at]));
    else if (shape === "point") ["lon", "lat"].forEach((id, at) => write(id, found[at]));
    else if (shape === "circle") {
      write("lon", found.lon);
      write("lat", found.lat);
      byId("radius").value = String(Math.round(found.radius));
    } else byId("corners").value = found.map((corner) => corner.map(degrees).join(" ")).join("\n");
    this.onChange();
  }

  // The columns of a subscription. Throws BadField.
  columns() {
    const need = (id) => {
      const value = numberIn(id);
      if (!Number.isFinite(value)) throw new BadField(id, "Draw the place on the map, or type its numbers");
      return value;
    };
    if (this.shape === "rectangle") return { region: ["west", "south", "east", "north"].map(need) };
    if (this.shape === "point") return { lon: need("lon"), lat: need("lat") };
    if (this.shape === "circle") return { circle: { lon: need("lon"), lat: need("lat"), radius_m: need("radius") } };
    const corners = byId("corners").value.split("\n").filter((line) => line.trim()).map((line) => line.trim().split(/[\s,]+/).map(Number));
    if (corners.length < 3 || !corners.every((one) => one.length === 2 && one.every(Number.isFinite))) {
      throw new BadField("corners", "A polygon needs at least three corners, each a longitude and a latitude");
    }
    return { polygon: { type: "Polygon", coordinates: [[...corners, corners[0]]] } };
  }

  // As `columns`, null while they are not whole.
  columnsIfWhole() {
    try {
      return this.columns();
    } catch {
      return null;
    }
  }
}
