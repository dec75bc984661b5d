// The active subscriptions: a list by pages, and their outlines on the map.

import { call } from "/page/api.js";
import { byId, show } from "/page/dom.js";
import { subscriptionRow } from "/page/rows.js";

const PAGE = 100;
const TYPED_MS = 200;

export class Active {
  // onChange(rows) after each change of the list
  constructor(onChange) {
    this.onChange = onChange;
    this.rows = [];
    this.cursor = null;
    this.asked = 0;
    byId("active-more").addEventListener("click", () => this.load(this.cursor));
    byId("prefix").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.load(), TYPED_MS);
    });
  }

  async load(after = null) {
    this.asked += 1;
    const { asked } = this;
    const query = new URLSearchParams({ limit: PAGE, prefix: byId("prefix").value.trim() });
    if (after !== null) query.set("after", after);
    const found = await call("GET", `/v1/subscriptions?${query}`).catch(() => null);
    if (found === null || asked !== this.asked) return;
    this.rows = after === null ? found.subscriptions : [...this.rows, ...found.subscriptions];
    this.cursor = found.after;
    this.draw();
  }

  draw() {
    byId("active").replaceChildren(...this.rows.map(subscriptionRow));
    show(byId("active-empty"), this.rows.length === 0);
    show(byId("active-more"), this.cursor !== null);
    this.onChange(this.rows);
  }
}
