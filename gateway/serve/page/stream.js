// The stream of updates: connects, connects again with the last id, drops what came before, and says how it stands.

import { call, withQuery } from "/page/api.js";
import { isLocked, keyOf, onKey } from "/page/keys.js";

const AGAIN_MS = 1000;
const SILENT_MS = 20000; // the server sends a heartbeat every 5 s

// An id is `boundary-index`, and behind it `-digits` of the log; the boundary before the first message is -1.
export function placeOf(id) {
  return /^(-?\d+)-(\d+)/.exec(id).slice(1).map(Number);
}

export function isAfter(place, other) {
  return other === null || place[0] > other[0] || (place[0] === other[0] && place[1] > other[1]);
}

export class UpdateStream {
  // onUpdate(update), onState(), onGap(gap), onRefused(error)
  constructor(path, { onUpdate, onState, onGap, onRefused }) {
    this.path = path;
    this.onUpdate = onUpdate;
    this.onState = onState;
    this.onGap = onGap;
    this.onRefused = onRefused;
    this.turn = 0;
    this.state = "connecting";
    this.through = null; // all updates as of messages up to here were sent
    this.received = 0;
    this.repeated = 0;
    this.lastId = null;
    this.last = null;
    this.heard = performance.now();
    this.watch = setInterval(() => this.checkSilence(), 5000);
    onKey(() => this.open());
    this.open();
  }

  // An EventSource has no headers: with a key it is opened with a ticket, which is good for one connection.
  async open() {
    this.close();
    const turn = this.turn;
    if (isLocked()) return this.become("locked");
    let ticket = null;
    try {
      if (keyOf() !== null) ({ ticket } = await call("POST", "/v1/tickets", undefined, { quiet: true }));
    } catch (error) {
      if (turn !== this.turn) return undefined;
      if (error.problem.reason === "missing_scope") {
        this.onRefused(error);
        return this.become("locked");
      }
      // a server without keys has no tickets
      if (error.problem.status !== 404 && error.problem.status !== 405) return this.again();
    }
    if (turn === this.turn) this.listen(new EventSource(withQuery(this.path, { since: this.lastId, ticket })));
    return undefined;
  }

  close() {
    this.turn += 1;
    clearTimeout(this.timer);
    this.source?.close();
  }

  again() {
    this.close();
    this.become(isLocked() ? "locked" : "reconnecting");
    this.timer = setTimeout(() => this.open(), AGAIN_MS);
  }

  listen(source) {
    this.source = source;
    source.onopen = () => this.become("live");
    source.onerror = () => this.again();
    source.onmessage = (event) => this.take(event);
    source.addEventListener("progress", (event) => {
      this.hear(event);
      this.through = JSON.parse(event.data).through;
      this.become("live");
    });
    source.addEventListener("gap", (event) => {
      const gap = JSON.parse(event.data);
      // ids are of another stream now; the browser still has the old one with this event
      if (gap.reason === "unknown_position") this.last = this.lastId = null;
      else this.hear(event);
      this.onGap(gap);
    });
  }

  take(event) {
    const place = placeOf(event.lastEventId);
    if (!isAfter(place, this.last)) {
      this.repeated += 1;
      return;
    }
    this.hear(event);
    this.received += 1;
    this.onUpdate(JSON.parse(event.data));
  }

  hear(event) {
    this.heard = performance.now();
    if (!event.lastEventId) return;
    const place = placeOf(event.lastEventId);
    if (!isAfter(place, this.last)) return;
    this.last = place;
    this.lastId = event.lastEventId;
  }

  become(state) {
    this.state = state;
    this.onState();
  }

  checkSilence() {
    if (this.state !== "live" || performance.now() - this.heard < SILENT_MS) return;
    this.again();
  }
}
