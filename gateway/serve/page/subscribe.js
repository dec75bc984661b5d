// The form of a subscription: its fields as columns, preview, subscribe.

import { ask, call } from "/page/api.js";
import { byId, element, numberIn, once, say, show, shortNumber } from "/page/dom.js";
import { BadField } from "/page/place.js";
import { addCondition, whereColumn } from "/page/where.js";

const HELP = {
  boolean: "Every message in the place that has all keywords; without any, every message there.",
  topk: "The k best of the window, by distance and words.",
  decay: "The k best since you subscribed; scores fade with time.",
  knn: "The k nearest messages that have a keyword.",
  skyline: "Messages that no other one beats in both place and words.",
};

// Milliseconds without typing after which the preview is asked for.
const TYPED_MS = 400;

const words = (text) => (/^\d+$/.test(text) ? Number(text) : text);

export class SubscribeForm {
  // place: Place; onKind(kind); onSubscribed(id)
  constructor(place, { onKind, onSubscribed }) {
    this.place = place;
    this.onSubscribed = onSubscribed;
    const form = byId("subscribe");
    form.addEventListener("submit", once(form.querySelector("[type=submit]"), () => this.subscribe()));
    for (const radio of form.elements.kind) {
      radio.addEventListener("change", () => {
        this.changeKind();
        onKind(this.kind);
      });
    }
    byId("alpha").addEventListener("input", () => {
      byId("alpha-value").textContent = byId("alpha").value;
    });
    byId("add-where").addEventListener("click", addCondition);
    byId("preview").addEventListener("click", once(byId("preview"), () => this.preview()));
    this.asked = 0; // previews; an answer to an earlier one is not shown
    form.addEventListener("input", () => this.previewSoon());
    this.changeKind();
    onKind(this.kind);
  }

  get kind() {
    return byId("subscribe").elements.kind.value;
  }

  changeKind() {
    byId("kind-help").textContent = HELP[this.kind];
    byId("match").placeholder = this.kind === "boolean" ? "all" : "any";
    for (const part of document.querySelectorAll("[data-kinds]")) {
      show(part, part.dataset.kinds.split(" ").includes(this.kind));
    }
    this.place.offer(this.kind);
  }

  // The columns of the form. Throws BadField.
  columns() {
    const keywords = byId("keywords").value.trim();
    if (!keywords && this.kind === "skyline") throw new BadField("keywords", "A skyline compares words: type at least one");
    const found = { kind: this.kind, ...(keywords && { keywords }), ...this.place.columns() };
    if (["topk", "decay", "knn"].includes(this.kind)) found.k = numberIn("k");
    if (["topk", "decay"].includes(this.kind)) found.alpha = numberIn("alpha");
    if (this.kind === "knn" && byId("within").value.trim()) found.radius_m = numberIn("within");
    const optional = { match: words(byId("match").value.trim()), not_keywords: byId("not-keywords").value.trim(), where: whereColumn() };
    for (const [name, value] of Object.entries(optional)) if (value !== "" && value !== undefined) found[name] = value;
    return found;
  }

  // What `action` gives for the columns; what goes wrong is said below the form.
  async with(action) {
    const answer = byId("subscribe-answer");
    for (const field of byId("subscribe").querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    say(answer, "");
    try {
      return await action(this.columns());
    } catch (error) {
      say(answer, error.message, true);
      if (!(error instanceof BadField)) return null;
      const field = byId(error.id);
      field.setAttribute("aria-invalid", "true");
      field.closest("details")?.setAttribute("open", "");
      field.focus();
      return null;
    }
  }

  async subscribe() {
    const name = byId("subscription-id").value.trim();
    const outcome = await this.with((columns) => call("POST", "/v1/subscriptions", { body: name ? { subscription_id: name, ...columns } : columns }));
    if (!outcome) return;
    const done = outcome.status === "unchanged" ? "is active already" : "is active";
    const often = outcome.matches_per_day === undefined ? "" : ` About ${shortNumber(outcome.matches_per_day)} matches a day.`;
    say(byId("subscribe-answer"), `${outcome.subscription_id} ${done}.${often}`);
    byId("subscription-id").value = "";
    this.forgetPreview();
    this.onSubscribed(outcome.subscription_id);
  }

  async preview() {
    this.forgetPreview();
    const found = await this.with((columns) => ask((client) => client.preview(columns)));
    if (found) this.showPreview(found);
  }

  // While somebody types, what is wrong so far is not said.
  previewSoon() {
    clearTimeout(this.soon);
    if (byId("preview").hidden) return;
    this.soon = setTimeout(async () => {
      const number = (this.asked += 1);
      let found = null;
      try {
        found = await ask((client) => client.preview(this.columns()));
      } catch {
        // it is said when the form is sent
      }
      if (number !== this.asked) return;
      if (found) this.showPreview(found);
      else byId("preview-answer").replaceChildren();
    }, TYPED_MS);
  }

  forgetPreview() {
    clearTimeout(this.soon);
    this.asked += 1;
    byId("preview-answer").replaceChildren();
  }

  showPreview(found) {
    const [strictest] = found.conditions.filter((one) => one.without > 0);
    const lines = [
      `${shortNumber(found.messages)} of the last ${shortNumber(found.read)} messages satisfy it.`,
      strictest ? `Without the condition "${strictest.name}" ${shortNumber(strictest.without)} more would.` : "",
    ];
    const texts = found.newest.map((one) => element("li", {}, one.text));
    byId("preview-answer").replaceChildren(
      ...lines.filter(Boolean).map((line) => element("p", {}, line)),
      element("ul", {}, ...texts));
  }
}

// One that has ended meanwhile is ended, too.
export const endSubscription = (id) => ask((client) => client.unsubscribe(id)).catch((error) => {
  if (error.reason !== "unknown_subscription") throw error;
});
