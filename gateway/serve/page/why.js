// A message and a subscription side by side, and why one is in the result of the other, or not.

import { asSeen, call } from "/page/api.js";
import { byId, degrees, element, facts, show, shortNumber } from "/page/dom.js";
import { keywordsOf, placeInWords, threeDigits } from "/page/rows.js";
import { subscriptionPath } from "/page/skyray.js";

export class Why {
  constructor() {
    this.dialog = byId("message");
    this.message = null; // null: one that is named by its id
    this.onSphere = false; // whether distances are metres on the earth
    this.requests = 0;
    byId("message-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.dialog.close();
    });
    byId("ask").addEventListener("click", () => this.ask());
    byId("asked").addEventListener("change", () => this.look());
    byId("message-id").addEventListener("input", () => this.name());
    for (const id of ["asked", "message-id"]) {
      byId(id).addEventListener("keydown", (event) => {
        if (event.key === "Enter") this.ask();
      });
    }
  }

  // names: of subscriptions to choose from
  open(message, subscription, names) {
    byId("message-id").value = message ? message.message_id : "";
    this.show(message);
    byId("asked-names").replaceChildren(...names.map((value) => element("option", { value })));
    byId("asked").value = subscription ?? "";
    byId("why").replaceChildren();
    this.look();
    // where there is room the lists stay in reach: another row asks about another message
    if (!this.dialog.open) this.dialog[matchMedia("(min-width: 1081px)").matches ? "show" : "showModal"]();
    if (message && subscription && !byId("ask").hidden) this.ask();
    else (message ? byId("asked") : byId("message-id")).focus();
  }

  // Another message is typed.
  name() {
    byId("why").replaceChildren();
    this.show(null);
  }

  show(message) {
    this.message = message;
    byId("message-text").textContent = message ? message.text || "(no text)" : "";
    byId("message-facts").replaceChildren(...(message
      ? facts([["number", message.seq], ["place", `${degrees(message.lon)}, ${degrees(message.lat)}`], ["time", message.event_time ?? message.time]])
      : []));
  }

  async look() {
    byId("why").replaceChildren();
    byId("asked-facts").replaceChildren();
    const id = byId("asked").value.trim();
    if (!id) return;
    const columns = await call("GET", subscriptionPath(id), { query: asSeen() }).catch(() => null);
    if (byId("asked").value.trim() !== id) return;
    byId("asked-facts").replaceChildren(...(columns
      ? facts([
        ["kind", columns.kind],
        ["keywords", keywordsOf(columns)],
        ["place", placeInWords(columns)],
        ["k", columns.k],
        ["alpha", columns.alpha],
        ["match", columns.match],
        ["not with", [columns.not_keywords ?? []].flat().join(" ")],
        ["where", columns.where && JSON.stringify(columns.where)],
      ])
      : facts([["", "is not active"]])));
  }

  async ask() {
    const [id, message] = [byId("asked").value.trim(), byId("message-id").value.trim()];
    const box = byId("why");
    for (const [value, field, what] of [[message, "message-id", "Name a message: its id, or seq: and its number"], [id, "asked", "Name a subscription"]]) {
      if (value) continue;
      byId(field).focus();
      box.replaceChildren(element("p", { className: "failed" }, what));
      return;
    }
    this.requests += 1;
    const request = this.requests;
    box.replaceChildren(element("p", {}, "Asking …"));
    const named = this.message ? `seq:${this.message.seq}` : message;
    const parts = await call("GET", "/v1/explain", { query: asSeen({ subscription: id, message: named }) }).then(
      (found) => {
        if (request === this.requests && found.message) this.show(found.message);
        return answerParts(found, this.onSphere);
      },
      (error) => [element("p", { className: "failed" }, error.message)],
    );
    if (request === this.requests) box.replaceChildren(...parts);
  }
}

// Scores as people read them: those of the nearest kind are metres on the earth, also where the message has none.
function unitOf(kind, onSphere) {
  return kind === "knn" && onSphere ? (value) => `${threeDigits(value / 1000)} km` : shortNumber;
}

function answerParts(found, onSphere) {
  const kind = found.subscription?.kind;
  const inUnits = unitOf(kind, onSphere);
  const shown = (value) => (value === null || value === undefined ? "" : inUnits(value));
  const verdict = element("p", { className: `verdict ${found.in_result ? "in-result" : "not-in-result"}` },
    element("strong", {}, found.in_result ? "In the result" : "Not in the result"), " ", element("code", {}, found.reason));
  const parts = [verdict, element("p", {}, found.why)];
  const list = facts([
    ["words found", found.words?.join(" ")],
    ["words missing", found.missing?.join(" ")],
    ["distance", found.distance_km === null ? "" : `${threeDigits(found.distance_km)} km`],
    ["score", shown(found.score)],
    ["rank", found.rank],
    ["needed score", shown(found.threshold)],
  ]);
  if (list.length) parts.push(element("dl", {}, ...list));
  if (kind === "decay" && found.score !== null) parts.push(element("p", { className: "help" }, "Scores grow with the time of the message: what counts is which is larger."));
  if (found.rivals?.length) {
    const rows = found.rivals.map((rival) => element("li", {}, element("span", { className: "number" }, shown(rival.score)), ` ${rival.text}`));
    parts.push(element("h3", { className: "small" }, "What is better"), element("ol", { className: "rivals" }, ...rows));
  }
  if (found.as_of !== undefined) parts.push(element("p", { className: "help" }, `As of message ${found.as_of.toLocaleString("en")}.`));
  return parts;
}
