// Rows of lists: updates, results, messages, subscriptions. Each is a button, so a keyboard reaches it.

import { element, shortNumber } from "/page/dom.js";
import { geometriesOf } from "/page/shapes.js";

const WORDS = { match: "match", enter: "enter", leave: "leave" };

export function updateRow(update) {
  const head = element("span", { className: "row-head" },
    element("span", { className: `badge ${WORDS[update.change] ?? ""}` }, update.change),
    element("span", { className: "name" }, update.subscription_id),
    element("span", { className: "number" }, update.score === null ? `#${update.seq}` : shortNumber(update.score)));
  return messageRow(update, { update: update.id, subscription: update.subscription_id }, head);
}

export function resultRow(result) {
  const kilometres = result.distance_km === null || result.distance_km === undefined ? "" : `${shortNumber(result.distance_km)} km`;
  const head = element("span", { className: "row-head" },
    element("span", { className: "badge rank" }, result.rank ? String(result.rank) : "match"),
    element("span", { className: "name" }, (result.words ?? []).join(" ")),
    element("span", { className: "number" }, [kilometres, shortNumber(result.score)].filter(Boolean).join(" · ") || `#${result.seq}`));
  return messageRow(result, {}, head);
}

// A row of a message; the list that it is in opens the message of `data-seq`.
export function messageRow(message, dataset, head) {
  const text = element("span", { className: "text" }, message.text || "(no text)");
  return element("li", { dataset }, element("button", { type: "button", className: "row", dataset: { seq: message.seq } }, head, text));
}

// Where a subscription is, in a few words.
export function placeInWords(columns) {
  const round = (value) => String(Math.round(value * 100) / 100);
  if (columns.circle) return `${shortNumber(columns.circle.radius_m / 1000)} km around ${round(columns.circle.lon)}, ${round(columns.circle.lat)}`;
  if (columns.region) return `rectangle ${columns.region.map(round).join(", ")}`;
  const [first] = geometriesOf(columns);
  if (first?.type === "Point") return `near ${first.coordinates.map(round).join(", ")}${columns.radius_m ? `, within ${shortNumber(columns.radius_m / 1000)} km` : ""}`;
  return first ? "polygon" : "";
}

export const keywordsOf = (columns) => [columns.keywords].flat().join(" ");

export function subscriptionRow(columns) {
  return element("li", {},
    element("button", { type: "button", className: "row", dataset: { subscription: columns.subscription_id } },
      element("span", { className: "row-head" },
        element("span", { className: "badge kind" }, columns.kind),
        element("span", { className: "name" }, columns.subscription_id)),
      element("span", { className: "text" }, keywordsOf(columns)),
      element("span", { className: "where" }, placeInWords(columns))));
}
