// Conditions on attributes: rows of an attribute, a comparison and a value, as the column `where`.

import { byId, element, show } from "/page/dom.js";
import { BadField } from "/page/place.js";

const ANY = [["is", "is"], ["not", "is not"]];
const ORDERED = [["lt", "<"], ["lte", "≤"], ["gt", ">"], ["gte", "≥"]];
const THERE = [["exists", "is there"], ["missing", "is missing"]];
// Of each type its comparisons, what its field is like, and the value of what was typed.
const TYPES = {
  number: { comparisons: [...ORDERED, ...ANY, ...THERE], input: { type: "number", step: "any", placeholder: "500" }, read: Number },
  time: { comparisons: [...ORDERED, ...THERE], input: { type: "datetime-local", step: 1 }, read: (text) => new Date(`${text}Z`).toISOString(), unit: " (UTC)" },
  category: { comparisons: [...ANY, ...THERE], input: { type: "text", placeholder: "a, b" }, read: values },
};
const WITHOUT_VALUE = ["exists", "missing"];

let attributes = [];
let number = 0;

// Of a category: one, or several by commas.
function values(text) {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
  return parts.length > 1 ? parts : parts[0];
}

// `{ name, type }` of each attribute that messages of the stream have, some of types that have no comparisons here.
export function useAttributes(declared = []) {
  attributes = declared.filter((one) => one.type in TYPES);
  show(byId("add-where"), attributes.length > 0);
  show(byId("no-attributes"), attributes.length === 0);
}

export function addCondition() {
  number += 1;
  const id = (part) => `where-${part}-${number}`;
  const options = (pairs) => pairs.map(([value, text]) => element("option", { value }, text));
  const field = (label, input) => element("div", { className: "field" }, element("label", { htmlFor: input.id }, label), input);
  const name = element("select", { id: id("name"), className: "where-name" }, ...options(attributes.map((one) => [one.name, one.name])));
  const comparison = element("select", { id: id("how"), className: "where-how" });
  const value = element("input", { id: id("value"), className: "where-value", spellcheck: false });
  const valueField = field("Value", value);
  const remove = element("button", { type: "button", className: "quiet" }, "Remove");
  const row = element("div", { className: "condition" }, field("Attribute", name), field("Comparison", comparison), valueField, remove);

  function changeComparison() {
    show(valueField, !WITHOUT_VALUE.includes(comparison.value));
  }
  function changeName() {
    const type = TYPES[typeOf(name.value)];
    comparison.replaceChildren(...options(type.comparisons));
    value.value = "";
    Object.assign(value, { placeholder: "", step: "" }, type.input);
    valueField.firstChild.textContent = `Value${type.unit ?? ""}`;
    changeComparison();
  }
  name.addEventListener("change", changeName);
  comparison.addEventListener("change", changeComparison);
  remove.addEventListener("click", () => {
    row.remove();
    byId("add-where").focus();
  });
  changeName();
  byId("where").append(row);
  name.focus();
}

const typeOf = (name) => attributes.find((one) => one.name === name).type;

// The column `where`, or undefined without conditions. Throws BadField.
export function whereColumn() {
  const found = Object.create(null); // a name may be anything
  for (const row of byId("where").children) {
    const name = row.querySelector(".where-name");
    const how = row.querySelector(".where-how").value;
    const value = row.querySelector(".where-value");
    const needed = !WITHOUT_VALUE.includes(how);
    if (needed && !value.value.trim()) throw new BadField(value.id, "A condition needs a value");
    const wanted = needed ? TYPES[typeOf(name.value)].read(value.value.trim()) : how === "exists";
    const before = found[name.value];
    if (before !== undefined && (how === "is" || before.constructor !== Object)) {
      throw new BadField(name.id, "\"is\" goes with no other condition on the same attribute");
    }
    found[name.value] = how === "is" ? wanted : { ...before, [needed ? how : "exists"]: wanted };
  }
  return Object.keys(found).length ? found : undefined;
}
