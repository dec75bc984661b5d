// The line that says how the stream stands: connected, how far behind, how fast, and what to do after a gap.

import { byId, show } from "/page/dom.js";

const WORDS = { connecting: "Connecting", live: "Live", reconnecting: "Reconnecting", locked: "No access", replay: "Replay" };

export class Status {
  // onAnew(): read results anew
  constructor(stream, onAnew) {
    this.stream = stream;
    this.onAnew = onAnew;
    this.before = { received: 0, at: performance.now() };
    byId("gap-close").addEventListener("click", () => show(byId("gap"), false));
    byId("gap-anew").addEventListener("click", () => {
      show(byId("gap"), false);
      this.onAnew();
    });
    if (stream.state !== "replay") setInterval(() => this.rate(), 1000);
    this.draw();
  }

  draw() {
    const { state } = this.stream;
    byId("status").dataset.state = state;
    if (byId("status-word").textContent !== WORDS[state]) byId("status-word").textContent = WORDS[state];
  }

  rate() {
    const now = performance.now();
    const { received } = this.stream;
    const rate = ((received - this.before.received) * 1000) / (now - this.before.at);
    this.before = { received, at: now };
    byId("rate").textContent = `${Math.round(rate).toLocaleString("en")} updates/s`;
    byId("received").textContent = received.toLocaleString("en");
  }

  figures(health) {
    const share = health.done === null ? "" : `, ${Math.round(100 * health.done)} %`;
    const compiling = health.preparing?.length ? `Compiling kernels: ${health.preparing.join(", ")}` : "";
    byId("doing").textContent = health.doing ? `Starting: ${health.doing}${share}` : compiling;
    if (!("messages" in health)) return;
    byId("active-count").textContent = health.subscriptions.toLocaleString("en", health.subscriptions < 10000 ? {} : { notation: "compact" });
    byId("active-count").title = health.subscriptions.toLocaleString("en");
    const behind = Math.max(0, health.next_seq - 1 - health.complete_through);
    byId("behind").textContent = `${behind.toLocaleString("en")} message${behind === 1 ? "" : "s"} behind`;
  }

  gap({ detail, do: todo }) {
    this.note("Updates are missing.", detail ? `${detail}.` : "", "To do: read the results anew.");
    if (todo) byId("gap").title = todo;
  }

  // Something that went wrong outside of a form.
  say(text) {
    this.note("That did not work.", text, "");
  }

  note(title, detail, todo) {
    for (const [id, text] of [["gap-title", title], ["gap-detail", detail], ["gap-do", todo]]) byId(id).textContent = text;
    show(byId("gap-anew"), todo !== "");
    show(byId("gap"));
  }
}
