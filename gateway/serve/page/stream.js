// The stream of updates as the client follows it, begun again with each other key, and how it stands.

import { inWords } from "/page/api.js";
import { isLocked, keyOf, onKey, refuseKey } from "/page/keys.js";
import { Client } from "/page/skyray.js";

export class UpdateStream {
  // onUpdate(update), onState(), onGap(gap), onRefused(error)
  constructor(handlers) {
    this.handlers = handlers;
    this.client = new Client("", { key: keyOf, patienceS: Infinity });
    this.events = null;
    this.state = "connecting";
    this.received = 0;
    onKey(() => this.follow());
    this.follow();
  }

  // All updates as of messages up to this one were sent.
  get through() {
    return this.events?.through ?? null;
  }

  async follow() {
    this.events?.close();
    if (isLocked()) return this.become("locked");
    const key = keyOf();
    this.events = this.client.events({ since: this.events?.position, onGap: this.handlers.onGap, onState: (state) => this.become(state) });
    try {
      for await (const { type, data } of this.events) {
        if (type !== "update") continue;
        this.received += 1;
        this.handlers.onUpdate(data);
      }
    } catch (error) {
      if (error.status === 401) return refuseKey(error.reason, key, false);
      this.become("locked");
      this.handlers.onRefused(Object.assign(error, { message: inWords(error) }));
    }
    return undefined;
  }

  become(state) {
    this.state = state;
    this.handlers.onState();
  }
}
