// A run that is replayed: a slider over its messages, and updates as of where it stands.

import { call, lookAt } from "/page/api.js";
import { byId, show } from "/page/dom.js";

const STEP_MS = 250;
const WHOLE_S = 120; // a speed is chosen at which the run is over by then
const MOST_UPDATES = 1000; // of a step: the newest
const MOST_MESSAGES = 300;

export class Replay {
  // run: of /v1/stream; onStep(messages, updates, anew, whether messages of the step are left out), async onMove() once it stands elsewhere, onError(error)
  constructor(run, { onStep, onMove, onError }) {
    this.run = run;
    this.onStep = onStep;
    this.onMove = onMove;
    this.onError = onError;
    this.state = "replay";
    this.position = null; // the message as of which the page is
    this.only = null; // a subscription whose updates are read alone
    this.wanted = null; // where the slider stands
    this.moving = null;
    this.playing = false;
    this.slider = byId("position");
    this.slider.max = run.last;
    this.slider.addEventListener("input", () => {
      this.pause();
      this.go(Number(this.slider.value));
    });
    byId("play").addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    byId("speed").value = [...byId("speed").options].map((one) => one.value).find((one) => one * WHOLE_S >= run.last) ?? "10000";
    byId("replay-run").textContent = `${run.folder}, ${run.state}`;
    show(byId("replay"));
    lookAt(run.last);
    this.go(run.last);
  }

  // Go to a message, or to the last one that was wanted while the page was on its way.
  go(seq) {
    this.wanted = Math.max(0, Math.min(this.run.last, seq));
    this.moving ??= this.move().catch((error) => this.fail(error)).finally(() => {
      this.moving = null;
    });
    return this.moving;
  }

  // Updates of one subscription, or of all: null.
  narrow(only) {
    this.only = only;
    const seq = this.wanted;
    this.position = null;
    this.go(seq);
  }

  async move() {
    while (this.wanted !== this.position) {
      const [before, seq] = [this.position, this.wanted];
      const anew = !this.playing || before === null || seq < before;
      const after = anew ? null : before;
      const [lines, { messages }] = await Promise.all([
        call("GET", "/v1/updates", { query: { since: after, through: seq, subscription: this.only, newest: true, limit: MOST_UPDATES } }),
        call("GET", "/v1/messages", { query: { after, through: seq, limit: MOST_MESSAGES } }),
      ]);
      const updates = lines.filter((line) => line.change);
      this.position = seq;
      lookAt(seq);
      this.onStep(messages, updates, anew, anew || seq - before > MOST_MESSAGES);
      this.say(messages.at(-1));
      await this.onMove();
    }
  }

  fail(error) {
    this.pause();
    this.wanted = this.position;
    this.onError(error);
  }

  say(message) {
    const time = message?.time ? ` · ${message.time.slice(0, 19).replace("T", " ")}` : "";
    const text = `message ${this.position.toLocaleString("en")} of ${this.run.last.toLocaleString("en")}${time}`;
    if (this.position === this.wanted) this.slider.value = this.position; // else it is being moved
    this.slider.setAttribute("aria-valuetext", text);
    byId("position-value").textContent = text;
  }

  async play() {
    if (this.position === this.run.last) await this.go(0);
    this.playing = true;
    this.label();
    let before = performance.now();
    while (this.playing && this.position < this.run.last) {
      await new Promise((resolve) => setTimeout(resolve, STEP_MS));
      if (!this.playing) return;
      const now = performance.now();
      await this.go(this.position + Math.max(1, Math.round((Number(byId("speed").value) * (now - before)) / 1000)));
      before = now;
    }
    this.pause();
  }

  pause() {
    this.playing = false;
    this.label();
  }

  label() {
    byId("play").textContent = this.playing ? "Pause" : "Play";
  }
}
