// The list of updates: the newest first, a bounded number of rows, changed a few times a second at most.

import { byId, element, show } from "/page/dom.js";
import { Known } from "/page/known.js";
import { fillFigure, updateRow } from "/page/rows.js";

const MOST_ROWS = 200;
const MOST_KEPT = 1000;
const DRAW_MS = 250;
const MOST_FRESH = 10; // rows of one change that are coloured: more cannot be followed, and cost a repaint each
const SPEAK_MS = 4000;

export class Updates {
  constructor() {
    this.list = byId("updates");
    this.known = new Known();
    this.kept = []; // the newest last
    this.waiting = [];
    this.only = null; // a subscription id
    this.drawnAt = 0;
    this.unspoken = 0;
    this.spokenAt = 0;
  }

  add(update) {
    this.waiting.push(update);
    if (this.waiting.length > 2 * MOST_KEPT) this.waiting.splice(0, MOST_KEPT); // a page in the background draws nothing
    this.unspoken += 1;
  }

  // Show these, and none before.
  replace(updates) {
    this.kept = updates.slice(-MOST_KEPT);
    this.waiting = [];
    this.narrow(this.only);
  }

  isShown(update) {
    return this.only === null || update.subscription_id === this.only;
  }

  // The newest first; their figures come once the kinds are known.
  rowsOf(updates) {
    const shown = updates.filter((one) => this.isShown(one)).slice(-MOST_ROWS).reverse();
    const rows = shown.map(updateRow);
    this.known.of(shown.filter((one) => one.score !== null).map((one) => one.subscription_id)).then((known) => {
      rows.forEach((row, at) => fillFigure(row, shown[at], known.get(shown[at].subscription_id)));
    });
    return rows;
  }

  narrow(only) {
    this.only = only;
    const rows = this.rowsOf(this.kept);
    this.list.replaceChildren(...rows);
    show(byId("updates-empty"), rows.length === 0);
  }

  draw(now) {
    if (this.waiting.length && now - this.drawnAt >= DRAW_MS) {
      this.drawnAt = now;
      const came = this.waiting;
      this.waiting = [];
      this.kept = [...this.kept, ...came].slice(-MOST_KEPT);
      const rows = this.rowsOf(came);
      if (rows.length <= MOST_FRESH) for (const row of rows) row.classList.add("fresh");
      this.list.prepend(...rows);
      while (this.list.children.length > MOST_ROWS) this.list.lastElementChild.remove();
      show(byId("updates-empty"), this.list.children.length === 0);
    }
    // a screen reader hears how many came, not each of them
    if (this.unspoken && now - this.spokenAt > SPEAK_MS) {
      byId("spoken").replaceChildren(element("span", {}, `${this.unspoken} new update${this.unspoken === 1 ? "" : "s"}`));
      this.unspoken = 0;
      this.spokenAt = now;
    }
  }
}
