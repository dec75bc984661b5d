// Requests to the server that the page came from, by its client.

import { keyOf, refuseKey } from "/page/keys.js";
import { Client } from "/page/skyray.js";

const client = new Client("", { key: keyOf, patienceS: 0 }); // somebody waits for the answer, and may try again

// What `action(client)` gives. `quiet`: a request of the page itself, for which the user is not prompted for a key.
export async function ask(action, { quiet = false } = {}) {
  for (;;) {
    const key = keyOf();
    try {
      return await action(client);
    } catch (error) {
      if (error.status === 401 && (await refuseKey(error.reason, key, !quiet))) continue;
      throw Object.assign(error, { message: inWords(error) });
    }
  }
}

export const call = (method, path, { quiet, ...options } = {}) => ask(() => client.call(method, path, options), { quiet });

export function inWords({ reason, detail, do: todo }) {
  const what = reason === "unreachable" ? "The server does not answer" : reason === "missing_scope" ? `Your key does not allow this: ${detail}` : detail;
  return [what, todo].filter(Boolean).join(". To do: ");
}

// Of a run that is replayed: the message as of which it is looked at; null for a live stream.
let asOf = null;
export const lookAt = (seq) => {
  asOf = seq;
};
export const asSeen = (query = {}) => ({ ...query, as_of: asOf });

// Which paths the server has: a page of another release hides what it cannot do.
export async function pathsOf() {
  const description = await call("GET", "/openapi.json");
  return new Set(Object.keys(description.paths ?? {}));
}
