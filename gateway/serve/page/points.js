// Messages as points on a canvas above the map, so that the map itself is not drawn again when they change.

import { colours } from "/page/basemap.js";

const LIT_MS = 2500;
const MOST_POINTS = 1000;
const MOST_LIT = 60;
const TILE = 512; // pixels of the world at zoom 0
const REACH = 10; // pixels from a point that still hit it
// Milliseconds between two drawings: at most a tenth of the time is spent on them.
const DRAW_MS = { least: 33, most: 500, share: 10 };

const RADIANS = Math.PI / 180;
const across = (lon) => (lon + 180) / 360;
const down = (lat) => 0.5 - Math.asinh(Math.tan(lat * RADIANS)) / (2 * Math.PI);

export class Points extends Map { // seq -> { x, y, since, quiet, object }; the newest last
  constructor() {
    super();
    this.versions = new Map(); // object -> seq of its version that is drawn: there is one
    this.map = null;
    this.changed = false;
    this.drawnAt = 0;
    this.everyMs = DRAW_MS.least;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "points";
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
  }

  show(map) {
    this.map = map;
    map.getCanvasContainer().append(this.canvas);
    map.on("move", () => this.paint(performance.now()));
    map.on("resize", () => this.paint(performance.now()));
    this.recolour();
  }

  // The style's colours have changed.
  recolour() {
    const { accent, halo, hot, place } = colours();
    this.colours = { hot };
    this.dots = { plain: dot(accent, halo, 4.5), lit: dot(hot, halo, 6.5), quiet: dot(place, halo, 2.5) };
    this.changed = true;
  }

  // A message lights up; of many the newest stay.
  light(message) {
    this.put(message, performance.now(), false);
  }

  // A point that does not light up: a message of a result, or a quiet one, which is in none.
  place(message, quiet = false) {
    const there = this.get(message.seq);
    if (!there || (there.quiet && !quiet)) this.put(message, -LIT_MS, quiet);
  }

  put({ seq, lon, lat, object_id: object }, since, quiet) {
    if (object) {
      const drawn = this.versions.get(object) ?? seq;
      if (drawn > seq) return;
      this.delete(drawn);
    }
    this.delete(seq);
    this.set(seq, { x: across(lon), y: down(lat), since, quiet, object });
    if (object) this.versions.set(object, seq);
    if (this.size > MOST_POINTS) this.delete(this.keys().next().value);
    this.changed = true;
  }

  // An object that is drawn is where this version is.
  move(version) {
    const there = this.get(this.versions.get(version.object_id));
    if (there) this.put(version, there.since, there.quiet);
  }

  // A version of an object has ended, or with no seq whichever is drawn.
  end(object, seq = this.versions.get(object)) {
    if (object && seq !== undefined) this.delete(seq);
  }

  delete(seq) {
    this.versions.delete(this.get(seq)?.object);
    this.changed = true;
    return super.delete(seq);
  }

  clear() {
    super.clear();
    this.versions.clear();
    this.changed = true;
  }

  // Once a frame: draws if something has changed, or is lit.
  draw(now) {
    if (!this.map || !this.changed || now - this.drawnAt < this.everyMs) return;
    this.paint(now);
    const spent = performance.now() - now;
    this.everyMs = Math.min(DRAW_MS.most, Math.max(DRAW_MS.least, spent * DRAW_MS.share));
  }

  paint(now) {
    const { clientWidth: width, clientHeight: height } = this.map.getCanvas();
    const ratio = devicePixelRatio;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.fillStyle = this.colours.hot;
    this.drawnAt = now;
    this.changed = false;
    let newer = this.size;
    for (const [, point, x, y] of this.onScreen(width, height)) {
      newer -= 1;
      const age = newer < MOST_LIT ? (now - point.since) / LIT_MS : 1;
      const lit = age >= 0 && age < 1;
      if (lit) {
        this.changed = true; // it fades
        context.globalAlpha = 0.55 * (1 - age);
        context.beginPath();
        context.arc(x, y, this.still.matches ? 14 : 9 + 17 * age, 0, 2 * Math.PI);
        context.fill();
        context.globalAlpha = 1;
      }
      const image = lit ? this.dots.lit : point.quiet ? this.dots.quiet : this.dots.plain;
      context.drawImage(image, x - image.reach, y - image.reach, 2 * image.reach, 2 * image.reach);
    }
  }

  // Points with their pixels, in each copy of the world that is shown.
  *onScreen(width, height) {
    const world = TILE * 2 ** this.map.getZoom();
    const centre = this.map.getCenter();
    const [left, top] = [across(centre.lng) * world - width / 2, down(centre.lat) * world - height / 2];
    for (const [seq, point] of this) {
      const y = point.y * world - top;
      if (y < -REACH || y > height + REACH) continue;
      const first = point.x * world - left;
      for (let x = first - Math.floor((first + REACH) / world) * world; x < width + REACH; x += world) yield [seq, point, x, y];
    }
  }

  // Seq of the newest point near a place of the canvas; null without one.
  at({ x, y }) {
    const { clientWidth, clientHeight } = this.map.getCanvas();
    let found = null;
    for (const [seq, , left, top] of this.onScreen(clientWidth, clientHeight)) {
      if (Math.hypot(left - x, top - y) <= REACH) found = seq;
    }
    return found;
  }
}

// A point as an image, drawn once for all of its colour.
function dot(colour, edge, radius) {
  const reach = radius + 2;
  const image = document.createElement("canvas");
  image.width = image.height = 2 * reach * devicePixelRatio;
  const context = image.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  context.arc(reach, reach, radius, 0, 2 * Math.PI);
  context.fillStyle = colour;
  context.strokeStyle = edge;
  context.lineWidth = 1.5;
  context.fill();
  context.stroke();
  image.reach = reach;
  return image;
}
