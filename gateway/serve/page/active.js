// The active subscriptions: a page of them as a list, and its outlines on the map.

import { asSeen, call } from "/page/api.js";
import { byId, show } from "/page/dom.js";
import { subscriptionRow } from "/page/rows.js";

const PAGE = 100;
const TYPED_MS = 200;

export class Active {
  // onChange(rows) after each change of the list
  constructor(onChange) {
    this.onChange = onChange;
    this.rows = [];
    this.cursors = [null]; // of each page up to this one
    this.after = null; // of the next page
    this.shown = "";
    this.requests = 0;
    this.timer = null; // of a prefix that is being typed
    byId("active-next").addEventListener("click", () => this.turn([...this.cursors, this.after]));
    byId("active-before").addEventListener("click", () => this.turn(this.cursors.slice(0, -1)));
    byId("prefix").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.turn([null]), TYPED_MS);
      this.allowTurns(); // the cursors belong to the prefix before
    });
  }

  async turn(cursors) {
    this.timer = null;
    this.cursors = cursors;
    await this.load();
    byId("prefix").scrollIntoView({ block: "center" });
  }

  // Read this page anew.
  async load() {
    this.requests += 1;
    const request = this.requests;
    const query = asSeen({ limit: PAGE, prefix: byId("prefix").value.trim(), after: this.cursors.at(-1) });
    const found = await call("GET", "/v1/subscriptions", { query, quiet: true }).catch(() => null);
    if (request !== this.requests) return;
    if (found !== null) [this.rows, this.after] = [found.subscriptions, found.after];
    this.allowTurns();
    if (found === null) return;
    const shown = JSON.stringify([this.rows, this.after, this.cursors]);
    if (shown === this.shown) return; // rows that stay as they are keep the focus
    this.shown = shown;
    this.draw();
  }

  allowTurns() {
    const allowed = this.timer === null;
    byId("active-before").disabled = !allowed || this.cursors.length === 1;
    byId("active-next").disabled = !allowed || this.after === null;
  }

  draw() {
    const first = (this.cursors.length - 1) * PAGE;
    byId("active").replaceChildren(...this.rows.map(subscriptionRow));
    show(byId("active-empty"), this.rows.length === 0);
    show(byId("active-pages"), this.after !== null || first > 0);
    byId("active-place").textContent = `${(first + 1).toLocaleString("en")} to ${(first + this.rows.length).toLocaleString("en")}`;
    this.onChange(this.rows);
  }
}
