// A message and a subscription side by side, and why one is in the result of the other, or not.

import { call, subscriptionPath } from "/page/api.js";
import { byId, degrees, element, facts, show, shortNumber } from "/page/dom.js";
import { keywordsOf, placeInWords } from "/page/rows.js";

export class Why {
  constructor() {
    this.dialog = byId("message");
    this.message = null;
    byId("message-close").addEventListener("click", () => this.dialog.close());
    byId("ask").addEventListener("click", () => this.ask());
    byId("asked").addEventListener("change", () => this.look());
    byId("asked").addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.ask();
    });
  }

  // names: of subscriptions to choose from
  open(message, subscription, names) {
    this.message = message;
    byId("message-text").textContent = message.text || "(no text)";
    byId("message-facts").replaceChildren(...facts([
      ["id", message.message_id],
      ["number", message.seq],
      ["place", `${degrees(message.lon)}, ${degrees(message.lat)}`],
    ]));
    byId("asked-names").replaceChildren(...names.map((value) => element("option", { value })));
    byId("asked").value = subscription ?? "";
    byId("why").replaceChildren();
    this.look();
    if (!this.dialog.open) this.dialog.showModal();
  }

  async look() {
    byId("why").replaceChildren();
    byId("asked-facts").replaceChildren();
    const id = byId("asked").value.trim();
    if (!id) return;
    const columns = await call("GET", subscriptionPath(id)).catch(() => null);
    if (byId("asked").value.trim() !== id) return;
    byId("asked-facts").replaceChildren(...(columns
      ? facts([["kind", columns.kind], ["keywords", keywordsOf(columns)], ["place", placeInWords(columns)], ["k", columns.k], ["alpha", columns.alpha]])
      : facts([["", "is not active"]])));
  }

  async ask() {
    const id = byId("asked").value.trim();
    const box = byId("why");
    if (!id) {
      byId("asked").focus();
      box.replaceChildren(element("p", { className: "failed" }, "Name a subscription"));
      return;
    }
    box.replaceChildren(element("p", {}, "Asking …"));
    try {
      const query = new URLSearchParams({ subscription: id, message: `seq:${this.message.seq}` });
      box.replaceChildren(...answerParts(await call("GET", `/v1/explain?${query}`)));
    } catch (error) {
      box.replaceChildren(element("p", { className: "failed" }, error.message));
    }
  }
}

function answerParts(found) {
  const verdict = element("p", { className: `verdict ${found.held ? "held" : "not-held"}` },
    element("strong", {}, found.held ? "In the result" : "Not in the result"), " ", element("code", {}, found.reason));
  const parts = [verdict, element("p", {}, found.why)];
  const list = facts([
    ["words found", found.words?.join(" ")],
    ["words missing", found.missing?.join(" ")],
    ["distance", found.distance_km === null ? "" : `${shortNumber(found.distance_km)} km`],
    ["score", shortNumber(found.score)],
    ["rank", found.rank],
    ["needed score", shortNumber(found.threshold)],
  ]);
  if (list.length) parts.push(element("dl", {}, ...list));
  if (found.rivals?.length) {
    const rows = found.rivals.map((rival) => element("li", {}, element("span", { className: "number" }, shortNumber(rival.score)), ` ${rival.text}`));
    parts.push(element("h3", { className: "small" }, "What is better"), element("ol", { className: "rivals" }, ...rows));
  }
  if (found.as_of !== undefined) parts.push(element("p", { className: "help" }, `As of message ${found.as_of}.`));
  return parts;
}
