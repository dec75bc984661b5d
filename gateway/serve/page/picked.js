// The subscription that is picked: its columns, and its result, which updates change.

import { asSeen, call } from "/page/api.js";
import { byId, element, show } from "/page/dom.js";
import { keywordsOf, kilometresOf, placeInWords, resultRow } from "/page/rows.js";
import { subscriptionPath } from "/page/skyray.js";

const MOST_ROWS = 100;
const DRAW_MS = 250;
const NEAREST_FIRST = ["knn"];
const OLDER_FIRST = ["decay", "knn", "skyline"]; // of equal scores
const WITHOUT_RESULT = ["boolean"];

// What a row of a result stands for: an object, of which there is one version, else a message.
const keyOf = (row) => row.object_id ?? row.seq;

export class Picked {
  // onPick(columns or null)
  constructor(onPick) {
    this.onPick = onPick;
    this.columns = null;
    this.rows = new Map(); // keyOf -> row
    this.asOf = -1;
    this.early = null; // updates while the result is read
    this.reading = 0;
    this.changed = false;
    this.drawnAt = 0;
    byId("picked-close").addEventListener("click", () => this.close());
  }

  get id() {
    return this.columns?.subscription_id ?? null;
  }

  // Whether its kind keeps a result; otherwise the latest matches are shown in its place.
  get hasResult() {
    return !WITHOUT_RESULT.includes(this.columns.kind);
  }

  async pick(id) {
    const columns = await call("GET", subscriptionPath(id), { query: asSeen() });
    this.columns = columns;
    this.rows = new Map();
    byId("picked-title").textContent = String(id);
    const limits = [columns.k ? `k ${columns.k}` : "", columns.alpha === undefined || columns.alpha === null ? "" : `alpha ${columns.alpha}`];
    byId("picked-facts").replaceChildren(
      element("span", { className: "badge kind" }, columns.kind), " ",
      [keywordsOf(columns), placeInWords(columns), ...limits].filter(Boolean).join(" · "));
    byId("results-title").textContent = this.hasResult ? "Result now" : "Latest matches";
    show(byId("picked"));
    this.onPick(columns);
    await this.read();
  }

  // Read the result anew.
  async read() {
    const { id } = this;
    if (id === null) return;
    this.reading += 1;
    const { reading } = this;
    this.early = [];
    const found = await call("GET", subscriptionPath(id, "/results"), { query: asSeen() });
    if (reading !== this.reading || this.id !== id) return; // another one is read
    this.rows = new Map(found.results.map((row) => [keyOf(row), row]));
    this.asOf = found.as_of;
    const { early } = this;
    this.early = null;
    for (const update of early) this.apply(update);
    this.changed = true;
  }

  take(update) {
    if (update.subscription_id !== this.id) return;
    if (this.early) this.early.push(update);
    else this.apply(update);
  }

  apply(update) {
    if (update.as_of <= this.asOf) return; // the result has it
    if (update.change === "leave") this.rows.delete(keyOf(update));
    else this.rows.set(keyOf(update), { ...update, distance_km: kilometresOf(this.columns, update) });
    if (!this.hasResult && this.rows.size > MOST_ROWS) this.rows.delete(keyOf([...this.rows.values()].reduce((one, other) => (other.seq < one.seq ? other : one))));
    this.changed = true;
  }

  close() {
    this.columns = null;
    show(byId("picked"), false);
    this.onPick(null);
  }

  draw(now) {
    if (!this.changed || !this.columns || now - this.drawnAt < DRAW_MS) return;
    this.changed = false;
    this.drawnAt = now;
    const rows = [...this.rows.values()];
    const { kind } = this.columns;
    if (!this.hasResult) rows.sort((one, other) => other.seq - one.seq);
    else {
      const sign = NEAREST_FIRST.includes(kind) ? 1 : -1;
      const age = OLDER_FIRST.includes(kind) ? 1 : -1;
      rows.sort((one, other) => sign * (one.score - other.score) || age * (one.seq - other.seq));
      rows.forEach((row, at) => {
        row.rank = at + 1;
      });
    }
    const list = byId("results");
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.seq : null;
    list.replaceChildren(...rows.slice(0, MOST_ROWS).map((row) => resultRow(row, kind)));
    if (focused) list.querySelector(`[data-seq="${focused}"]`)?.focus();
    show(byId("results-empty"), rows.length === 0);
  }
}
