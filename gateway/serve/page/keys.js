// The key of this tab: typed when the server needs one, kept until the tab is closed or the key is forgotten.

import { byId, element, show } from "/page/dom.js";

const NAME = "skyray-key";
const WHY = {
  no_key: "This server wants a key.",
  wrong_key: "The server does not know this key.",
  expired_key: "This key has expired.",
};

let wanted = false; // whether the server needs a key that it was not given
let asking = null; // one dialog, however many requests wait for it

export const keyOf = () => sessionStorage.getItem(NAME);
export const isLocked = () => wanted;

// `listener()` after a key was given or forgotten, or one is wanted.
const listeners = [];
export const onKey = (listener) => listeners.push(listener);

function change(key, isWanted) {
  if (key === null) sessionStorage.removeItem(NAME);
  else sessionStorage.setItem(NAME, key);
  note(isWanted);
  for (const listener of listeners) listener();
}

function note(isWanted) {
  wanted = isWanted;
  const button = byId("key");
  show(button, wanted || keyOf() !== null);
  button.textContent = wanted ? "Give a key" : "Key";
}

// A request with this key was answered with 401; resolves to true if it should be sent again.
export function refuseKey(reason, key, ask) {
  if (keyOf() !== key) return Promise.resolve(true); // another one was given meanwhile
  if (!wanted) change(key, true);
  return ask ? askForKey(WHY[reason] ?? WHY.no_key) : Promise.resolve(false);
}

function askForKey(why) {
  asking ??= new Promise((resolve) => {
    const input = element("input", { id: "key-input", type: "password", autocomplete: "off", spellcheck: false });
    const close = element("button", { type: "button", className: "secondary" }, "Cancel");
    const forget = element("button", { type: "button", className: "quiet danger" }, "Forget the key");
    show(forget, keyOf() !== null);
    const form = element("form", {},
      element("p", { id: "key-why" }, why),
      element("div", { className: "field" }, element("label", { htmlFor: "key-input" }, "Key"), input),
      element("p", { className: "help" }, "It is sent to this server only, and kept until this tab is closed."),
      element("div", { className: "actions" }, element("button", { type: "submit", className: "primary" }, "Use it"), close, forget));
    const dialog = element("dialog", { id: "key-dialog", className: "narrow", attributes: { "aria-labelledby": "key-title" } },
      element("header", {}, element("h2", { id: "key-title" }, "Key")), form);
    let given = false;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (!key) return;
      given = true;
      dialog.close();
      change(key, false);
    });
    close.addEventListener("click", () => dialog.close());
    forget.addEventListener("click", () => {
      dialog.close();
      change(null, false);
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      asking = null;
      resolve(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

byId("key").addEventListener("click", () => askForKey(wanted ? WHY.no_key : "Requests of this tab have a key."));
note(false);
