// Elements are made with text nodes alone: what a message says is never read as markup.

export const byId = (id) => document.getElementById(id);

// element("li", { className: "row", dataset: { seq: 1 } }, "text", anotherElement)
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  const { dataset = {}, attributes = {}, ...rest } = properties;
  Object.assign(made, rest);
  Object.assign(made.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export const show = (node, shown = true) => {
  node.hidden = !shown;
};

// What a button does, once at a time: a click or Enter meanwhile does nothing. (A button that is disabled loses the focus.)
export const once = (button, action) => async (event) => {
  event?.preventDefault();
  if (button.ariaBusy === "true") return;
  button.ariaBusy = "true";
  try {
    await action();
  } finally {
    button.ariaBusy = null;
  }
};

// <dt> and <dd> for each pair whose value is there.
export function facts(pairs) {
  return pairs
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]);
}

// An answer of the server below a form: its text, and whether it is an error.
export function say(node, text, failed = false) {
  node.textContent = text;
  node.classList.toggle("failed", failed);
}

export const degrees = (value) => String(Math.round(value * 1e5) / 1e5);

// Of an input; NaN where there is no number.
export function numberIn(id) {
  const text = byId(id).value.trim().replace(",", ".");
  return text === "" ? NaN : Number(text);
}

export function shortNumber(value) {
  if (value === null || value === undefined) return "";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}
