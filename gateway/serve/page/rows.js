// Rows of lists: updates, results, messages, subscriptions. Each is a button, so a keyboard reaches it.

import { element, shortNumber } from "/page/dom.js";
import { distanceM, geometriesOf } from "/page/shapes.js";

const WORDS = { match: "match", enter: "enter", leave: "leave", change: "match" };

// Kinds whose messages are shown with their distance: it is the score of knn; that of decay grows with the time.
const BY_DISTANCE = ["knn", "decay"];

// From the point of a subscription to a message; null where it has none.
export function kilometresOf(columns, { lon, lat }) {
  return Number.isFinite(columns?.lon) ? distanceM([columns.lon, columns.lat], [lon, lat]) / 1000 : null;
}

const inKilometres = (kilometres) => (kilometres === null || kilometres === undefined ? "" : `${threeDigits(kilometres)} km`);
const asScore = (score) => (score === null || score === undefined ? "" : `score ${threeDigits(score)}`);
export const threeDigits = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3))));

// How a message does for a subscription of a kind, with its unit: `320 km`, `score 0.83`; else the message's number.
function figureOf(kind, row, kilometres) {
  return (BY_DISTANCE.includes(kind) ? inKilometres(kilometres) : asScore(row.score)) || `#${row.seq}`;
}

// Without the kind of its subscription an update has no figure: `fillFigure` gives it one.
export function updateRow(update) {
  const head = element("span", { className: "row-head" },
    element("span", { className: `badge ${WORDS[update.change] ?? ""}` }, update.change),
    element("span", { className: "name" }, update.subscription_id),
    element("span", { className: "number" }, `#${update.seq}`));
  return messageRow(update, { update: update.id, subscription: update.subscription_id }, head);
}

export function fillFigure(row, update, columns) {
  if (update.score !== null && columns) row.querySelector(".number").textContent = figureOf(columns.kind, update, kilometresOf(columns, update));
}

export function resultRow(result, kind) {
  const figure = figureOf(kind, result, result.distance_km);
  const kilometres = BY_DISTANCE.includes(kind) ? "" : inKilometres(result.distance_km);
  const head = element("span", { className: "row-head" },
    element("span", { className: "badge rank" }, result.rank ? String(result.rank) : "match"),
    element("span", { className: "name" }, (result.words ?? []).join(" ")),
    element("span", { className: "number" }, [kilometres, figure].filter(Boolean).join(" · ")));
  return messageRow(result, {}, head);
}

// A row of a message; the list that it is in opens the message of `data-seq`.
export function messageRow(message, dataset, head) {
  const text = element("span", { className: "text" }, message.text || "(no text)");
  const object = message.object_id ? element("span", { className: "where object" }, message.object_id) : null;
  return element("li", { dataset }, element("button", { type: "button", className: "row", dataset: { seq: message.seq } }, head, text, object));
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
