// Conditions on attributes: rows of a name, a comparison and a value, as the column `where`.

import { byId, element } from "/page/dom.js";
import { BadField } from "/page/place.js";

const COMPARISONS = [["is", "is"], ["not", "is not"], ["lt", "<"], ["lte", "≤"], ["gt", ">"], ["gte", "≥"], ["exists", "is there"], ["missing", "is missing"]];
const WITHOUT_VALUE = ["exists", "missing"];

let number = 0;

export function addCondition() {
  number += 1;
  const id = (part) => `where-${part}-${number}`;
  const field = (part, label, input) => element("div", { className: "field" }, element("label", { htmlFor: id(part) }, label), input);
  const name = element("input", { id: id("name"), className: "where-name", spellcheck: false, placeholder: "price" });
  const comparison = element("select", { id: id("how"), className: "where-how" }, ...COMPARISONS.map(([value, text]) => element("option", { value }, text)));
  const value = element("input", { id: id("value"), className: "where-value", spellcheck: false, placeholder: "500" });
  const remove = element("button", { type: "button", className: "quiet" }, "Remove");
  const row = element("div", { className: "condition" }, field("name", "Attribute", name), field("how", "Comparison", comparison), field("value", "Value", value), remove);
  comparison.addEventListener("change", () => {
    value.disabled = WITHOUT_VALUE.includes(comparison.value);
  });
  remove.addEventListener("click", () => {
    row.remove();
    byId("add-where").focus();
  });
  byId("where").append(row);
  name.focus();
}

// Numbers and truth as such; several values by commas.
function valueOf(text) {
  const one = (part) => (part === "true" ? true : part === "false" ? false : part !== "" && Number.isFinite(Number(part)) ? Number(part) : part);
  const parts = text.split(",").map((part) => one(part.trim()));
  return parts.length > 1 ? parts : parts[0];
}

// The column `where`, or undefined without conditions. Throws BadField.
export function whereColumn() {
  const found = Object.create(null); // a name may be anything
  for (const row of byId("where").children) {
    const name = row.querySelector(".where-name");
    const how = row.querySelector(".where-how").value;
    const value = row.querySelector(".where-value");
    if (!name.value.trim()) throw new BadField(name.id, "A condition needs the name of an attribute");
    if (!value.disabled && !value.value.trim()) throw new BadField(value.id, "A condition needs a value");
    const wanted = valueOf(value.value.trim());
    const key = name.value.trim();
    if (how === "is") {
      if (key in found) throw new BadField(name.id, "`is` goes with no other condition on the same attribute");
      found[key] = wanted;
      continue;
    }
    const condition = how === "missing" ? { exists: false } : how === "exists" ? { exists: true } : { [how]: wanted };
    const before = found[key];
    if (before !== undefined && (typeof before !== "object" || Array.isArray(before))) {
      throw new BadField(name.id, "`is` goes with no other condition on the same attribute");
    }
    found[key] = { ...before, ...condition };
  }
  return Object.keys(found).length ? found : undefined;
}
