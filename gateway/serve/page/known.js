// What the page knows of subscriptions that it has no list of: their columns, read a few ids at a time.

import { asSeen, call } from "/page/api.js";

const MOST_IDS = 50; // of a request
const MOST_KNOWN = 20000;
const KNOWN_MS = 60000; // somebody may replace them

export class Known {
  constructor() {
    this.columns = new Map(); // id -> columns; null: not active
    this.since = performance.now();
  }

  // Columns by id, and null for those that are not active.
  async of(ids) {
    if (this.columns.size > MOST_KNOWN || performance.now() - this.since > KNOWN_MS) {
      this.columns.clear();
      this.since = performance.now();
    }
    const unknown = [...new Set(ids)].filter((id) => !this.columns.has(id));
    for (let first = 0; first < unknown.length; first += MOST_IDS) await this.read(unknown.slice(first, first + MOST_IDS));
    return this.columns;
  }

  async read(ids) {
    const found = await call("GET", "/v1/subscriptions", { query: asSeen({ limit: ids.length, id: ids }), quiet: true }).catch(() => null);
    if (found === null) return; // asked again with the next row
    for (const id of ids) this.columns.set(id, null);
    for (const columns of found.subscriptions) this.columns.set(String(columns.subscription_id), columns);
  }
}
