// The list of updates: the newest first, a bounded number of rows, changed once a frame.

import { byId, element, show } from "/page/dom.js";
import { updateRow } from "/page/rows.js";

const MOST_ROWS = 200;
const MOST_KEPT = 1000;
const SPEAK_EVERY_MS = 4000;

export class Updates {
  constructor() {
    this.list = byId("updates");
    this.kept = []; // the newest last
    this.waiting = [];
    this.only = null; // a subscription id
    this.unspoken = 0;
    this.spokenAt = 0;
  }

  add(update) {
    this.waiting.push(update);
    if (this.waiting.length > 2 * MOST_KEPT) this.waiting.splice(0, MOST_KEPT); // a page in the background draws nothing
    this.unspoken += 1;
  }

  isShown(update) {
    return this.only === null || update.subscription_id === this.only;
  }

  narrow(only) {
    this.only = only;
    const rows = this.kept.filter((one) => this.isShown(one)).slice(-MOST_ROWS).reverse().map(updateRow);
    this.list.replaceChildren(...rows);
    show(byId("updates-empty"), rows.length === 0);
  }

  draw(now) {
    if (this.waiting.length) {
      const came = this.waiting;
      this.waiting = [];
      this.kept = [...this.kept, ...came].slice(-MOST_KEPT);
      const rows = came.filter((one) => this.isShown(one)).slice(-MOST_ROWS).reverse().map(updateRow);
      for (const row of rows) row.classList.add("fresh");
      this.list.prepend(...rows);
      while (this.list.children.length > MOST_ROWS) this.list.lastElementChild.remove();
      show(byId("updates-empty"), this.list.children.length === 0);
    }
    // a screen reader hears how many came, not each of them
    if (this.unspoken && now - this.spokenAt > SPEAK_EVERY_MS) {
      byId("spoken").replaceChildren(element("span", {}, `${this.unspoken} new update${this.unspoken === 1 ? "" : "s"}`));
      this.unspoken = 0;
      this.spokenAt = now;
    }
  }
}
