// The form of a message, and the messages that were published from this page.

import { ask } from "/page/api.js";
import { byId, degrees, element, numberIn, once, say, show, shortNumber } from "/page/dom.js";
import { messageRow } from "/page/rows.js";

const MOST_ROWS = 30;

export class PublishForm {
  // onPublished(message)
  constructor(onPublished) {
    this.onPublished = onPublished;
    const form = byId("publish");
    form.addEventListener("submit", once(form.querySelector("[type=submit]"), () => this.publish()));
    byId("would-reach").addEventListener("click", once(byId("would-reach"), () => this.reach()));
  }

  place([lon, lat]) {
    byId("message-lon").value = degrees(lon);
    byId("message-lat").value = degrees(lat);
  }

  message() {
    const [text, lon, lat] = [byId("text").value.trim(), numberIn("message-lon"), numberIn("message-lat")];
    if (!text) throw new Error("Type a text");
    if (!Number.isFinite(lon) || !Number.isFinite(lat)) throw new Error("Click the map where the message is, or type its place");
    const more = byId("message-more").value.trim();
    if (!more) return { text, lon, lat };
    let read;
    try {
      read = JSON.parse(more);
    } catch {
      throw new Error("The attributes are not JSON; write an object, such as {\"price\": 900}");
    }
    return { ...read, text, lon, lat };
  }

  async with(action) {
    const answer = byId("publish-answer");
    say(answer, "");
    try {
      return await action(this.message());
    } catch (error) {
      say(answer, error.message, true);
      return null;
    }
  }

  async publish() {
    await this.with(async (message) => {
      const outcome = await ask((client) => client.publish(message));
      const published = { ...message, message_id: outcome.id, seq: outcome.seq };
      say(byId("publish-answer"), `On disk as message ${outcome.seq.toLocaleString("en")}.`);
      byId("text").value = "";
      byId("text").focus();
      const head = element("span", { className: "row-head" }, element("span", { className: "badge" }, `#${outcome.seq}`));
      byId("published").prepend(messageRow(published, {}, head));
      while (byId("published").children.length > MOST_ROWS) byId("published").lastElementChild.remove();
      show(byId("published-title"));
      this.onPublished(published);
    });
  }

  async reach() {
    await this.with(async (message) => {
      const found = await ask((client) => client.match(message));
      const line = `It would reach ${shortNumber(found.reached_in_all)} of ${shortNumber(found.subscriptions)} subscriptions.`;
      const names = found.reached.slice(0, 10).map((one) => element("li", {}, `${one.subscription_id} (${one.kind})`));
      byId("reach-answer").replaceChildren(element("p", {}, line), element("ul", {}, ...names));
    });
  }
}
