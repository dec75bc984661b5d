// Tabs as the ARIA patterns have them: arrows move, one panel is shown.

import { byId, show } from "/page/dom.js";

export function startTabs(list) {
  const tabs = [...list.querySelectorAll("[role=tab]")];

  function select(tab, focus = true) {
    for (const one of tabs) {
      const chosen = one === tab;
      one.setAttribute("aria-selected", String(chosen));
      one.tabIndex = chosen ? 0 : -1;
      show(byId(one.getAttribute("aria-controls")), chosen);
    }
    if (focus) tab.focus();
  }

  for (const tab of tabs) tab.addEventListener("click", () => select(tab));
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tabs.indexOf(event.target), End: tabs.length - 1 - tabs.indexOf(event.target) }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    select(tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length]);
  });
  return { select: (id) => select(byId(id), false), selected: () => tabs.find((tab) => tab.getAttribute("aria-selected") === "true").id };
}
