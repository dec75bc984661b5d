// The client of `skyray serve` for browsers and Node.js 20 or later: one file without dependencies, types in `skyray.d.ts`.
//
//   import { Client } from "./skyray.js";
//   const client = new Client(url);
//   await client.subscribe({ kind: "boolean", keywords: "ramen", region: [139, 35, 140, 36], subscription_id: "s1" });
//   for await (const update of client.updates({ subscription: "s1", since: "begin" })) console.log(update.message_id);
//
// It tries again, reconnects and drops repeats as the Python client does; both pass the same test vectors.

const FIRST_WAIT_MS = 200; // before the second attempt; it doubles with each further one
const MOST_WAIT_MS = 5_000; // of one wait, beside what the server requests: somebody may look at a page
const MOST_TIMER_MS = 2 ** 31 - 1; // a longer timer ends at once
const SUBSCRIPTIONS = "/v1/subscriptions";
const POSITION = /^(-1|\d{1,18})(?:-(\d{1,19})(?:-[0-9a-f]{8})?)?$/;

// `reason` is the server's code, `status` that of HTTP, 0 without an answer.
export class ClientError extends Error {
  constructor(what, { reason = "no_problem", detail = "", status = 0, where, do: todo }) {
    super(`${what}: ${detail}${where ? ` (${where})` : ""} [${reason}]${todo ? `; ${todo}` : ""}`);
    Object.assign(this, { reason, detail, status, where: where ?? "", do: todo ?? "" });
  }
}

// Updates were lost: `missed` says which, `resume` is the position behind them, null for now.
export class Gap extends ClientError {
  constructor(what, missed) {
    super(what, missed);
    Object.assign(this, { missed, resume: resumeOf(missed) });
  }
}

// A failure after which a request may be sent again, `waitMs` later at least.
class Transient extends Error {
  constructor(error, waitMs = 0) {
    super(error.message);
    Object.assign(this, { error, waitMs });
  }
}

class Tries {
  constructor(patienceS) {
    this.forget(patienceS);
  }

  // Begin to count anew after a success.
  forget(patienceS) {
    Object.assign(this, { patienceMs: patienceS * 1000, count: 0, waitedMs: 0 });
  }

  // Wait before the next attempt, or until `signal`. Throws once all waits together would be longer than the patience.
  async wait({ error, waitMs }, signal) {
    const backoffMs = Math.min(MOST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(this.count, 30)) * (0.5 + 0.5 * Math.random());
    const delayMs = Math.min(MOST_TIMER_MS, waitMs + backoffMs);
    if (this.waitedMs + delayMs > this.patienceMs) throw error;
    this.waitedMs += delayMs;
    this.count += 1;
    await new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", end);
        resolve();
      };
      const timer = setTimeout(end, delayMs);
      signal?.addEventListener("abort", end);
    });
  }
}

// Events from text, wherever its chunks divide them, read as the WHATWG specification says.
class EventParser {
  retryMs = 0;
  #rest = "";
  #afterCr = false;
  #event = { name: "", id: null, data: [] };

  *feed(chunk) {
    if (!chunk) return;
    const lines = (this.#rest + (this.#afterCr ? chunk.replace(/^\n/, "") : chunk)).split(/\r\n|\r|\n/);
    this.#afterCr = chunk.endsWith("\r"); // perhaps the first half of CR LF
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line) {
        this.#take(line);
        continue;
      }
      const { name, id, data } = this.#event;
      this.#event = { name: "", id: null, data: [] };
      if (data.length) yield { name: name || "message", id, data: data.join("\n") };
    }
  }

  #take(line) {
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line);
    if (field === "data") this.#event.data.push(value);
    else if (field === "event") this.#event.name = value;
    else if (field === "id" && !value.includes("\0")) this.#event.id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retryMs = Number(value.slice(0, 9));
  }
}

// A stream of updates: an asynchronous iterator that reconnects by itself. `break` or `close` ends it.
class Updates {
  position = null; // of the last update that was handed on; pass it as `since` to continue after it
  through = -1; // all updates as of messages up to this one were handed on
  connections = 0; // that were opened so far
  #place = null;
  #closed = new AbortController();
  #client;
  #options;
  #items = this.#follow();

  // everything: hand on pairs of type and data of all events, not updates alone
  constructor(client, everything, { since = null, snapshot = false, onGap, onState, silenceS = 15, patienceS = Infinity, ...filters }) {
    this.#client = client;
    this.#options = { everything, snapshot, onGap, onState, silenceS, patienceS, filters };
    this.#stand(since);
  }

  [Symbol.asyncIterator]() {
    return this.#items;
  }

  // Close the connection; nothing more is handed on.
  close() {
    this.#closed.abort();
  }

  // Set the position; null: the beginning that the server chooses.
  #stand(position) {
    [this.position, this.#place] = [position, position === null ? null : placeOf(position)];
  }

  async *#follow() {
    const [{ patienceS, onState, everything }, { signal }] = [this.#options, this.#closed];
    const tries = new Tries(this.#client.patienceS);
    while (!signal.aborted) {
      try {
        for await (const event of this.#events(signal)) {
          tries.forget(patienceS);
          if (everything) yield event;
          else if (event.type === "update") yield event.data;
        }
      } catch (failure) {
        if (signal.aborted) return;
        if (!(failure instanceof Transient)) throw failure;
        onState?.("reconnecting");
        await tries.wait(failure, signal);
      }
    }
  }

  // The new events of one connection, which ends with an error.
  async *#events(signal) {
    const { snapshot, filters, onState, silenceS } = this.#options;
    const [client, silent] = [this.#client, new AbortController()];
    const heard = async (coming) => { // the time that the caller takes between two reads does not count
      const timer = setTimeout(() => silent.abort(new Error(`nothing came for ${silenceS} s`)), silenceS * 1000);
      return coming.finally(() => clearTimeout(timer));
    };
    const open = (path, options) => heard(send(client, "GET", path, options, AbortSignal.any([signal, silent.signal])));
    try {
      // a failure of the first connection then loses no update
      if (this.position === null && !snapshot) this.#stand(String((await heard(valueOf(client, "GET /v1/stream", await open("/v1/stream", {})))).complete_through));
      const headers = { Accept: "text/event-stream", ...(this.position !== null && { "Last-Event-ID": this.position }) };
      const answer = await open("/v1/updates", { query: { ...filters, snapshot: snapshot && this.position === null ? 1 : null }, headers });
      this.connections += 1;
      onState?.("live");
      const [reader, decoder, parser] = [answer.body.getReader(), new TextDecoder(), new EventParser()];
      for (;;) {
        const { done, value } = await heard(reader.read()).catch(lost(client, UPDATES));
        if (done) lost(client, UPDATES, parser.retryMs)(new Error("the stream ended"));
        for (const event of parser.feed(decoder.decode(value, { stream: true }))) {
          const taken = this.#take(event);
          if (taken !== null) yield taken;
        }
      }
    } catch (error) {
      throw error.status >= 500 ? new Transient(error) : error; // of a proxy, while the server restarts
    } finally {
      silent.abort();
    }
  }

  // The event as a value; null if it was handed on before. Throws Gap.
  #take({ name, id, data }) {
    if (name === "message") return this.#moves(id) ? { type: "update", data: JSON.parse(data) } : null;
    if (!["progress", "snapshot", "gap"].includes(name)) return null;
    const found = { type: name, data: JSON.parse(data) };
    if (name === "progress") {
      this.#moves(id);
      this.through = Math.max(this.through, found.data.through);
    }
    if (name !== "gap") return found;
    if (found.data.reason === "slow") return null; // the server ends the connection, and no update is lost
    this.#stand(resumeOf(found.data));
    if (!this.#options.onGap) throw new Gap(UPDATES, found.data);
    this.#options.onGap(found.data);
    return found;
  }

  // Advance to a position if it is later; whether it was.
  #moves(position) {
    if (position === null) return false;
    const place = placeOf(position);
    const [boundary, index] = this.#place ?? [-2n, 0n];
    if (place[0] < boundary || (place[0] === boundary && place[1] <= index)) return false;
    [this.position, this.#place] = [position, place];
    return true;
  }
}

export class Client {
  // url: of the server, by default the one that the page comes from; key: a text, or a function that gives one or null
  constructor(url = "", { key = null, patienceS = 30, timeoutS = 60 } = {}) {
    Object.assign(this, { url: url.replace(/\/$/, ""), key, patienceS, timeoutS });
  }

  // Any request: the value of its answer, an array for lines of JSON. `again`: whether it may be sent a second time.
  async call(method, path, options) {
    return (await answered(this, method, path, options)).value;
  }

  subscribe(columns, { replace = false } = {}) {
    return this.call("POST", SUBSCRIPTIONS, { query: { replace: replace || null }, body: named(columns, "subscription_id") });
  }

  replace(id, columns, { etag = null, new: isNew = false } = {}) {
    const headers = { ...(etag !== null && { "If-Match": etag }), ...(isNew && { "If-None-Match": "*" }) };
    return this.call("PUT", subscriptionPath(id), { body: columns, headers, again: etag === null && !isNew });
  }

  async subscription(id) {
    const { value, headers } = await answered(this, "GET", subscriptionPath(id));
    return { columns: value, etag: headers.get("etag") ?? "" };
  }

  async unsubscribe(id, { etag = null } = {}) {
    const headers = etag === null ? {} : { "If-Match": etag };
    try {
      return await this.call("DELETE", subscriptionPath(id), { headers, again: etag === null });
    } catch (error) {
      if (error.reason !== "unknown_subscription" || !error.repeated) throw error;
      return { status: "deleted", subscription_id: id }; // by the request before, whose answer was lost
    }
  }

  async *subscriptions(filters = {}) {
    for (let after = null; ;) {
      const page = await this.call("GET", SUBSCRIPTIONS, { query: { ...filters, after, limit: 1000 } });
      yield* page.subscriptions;
      if ((after = page.after) === null) return;
    }
  }

  publish(messages, { wait = null } = {}) {
    const body = Array.isArray(messages) ? messages.map((one) => named(one, "id")) : named(messages, "id");
    return this.call("POST", "/v1/messages", { query: { wait }, body });
  }

  updates(options = {}) {
    return new Updates(this, false, options);
  }

  events(options = {}) {
    return new Updates(this, true, options);
  }

  results(id) {
    return this.call("GET", subscriptionPath(id, "/results"));
  }

  explain(id, message) {
    return this.call("GET", "/v1/explain", { query: { subscription: id, message } });
  }

  match(message, { limit = 100 } = {}) {
    return this.call("POST", "/v1/match", { query: { limit }, body: message });
  }

  preview(columns, { limit = 3 } = {}) {
    return this.call("POST", "/v1/preview", { query: { limit }, body: columns });
  }

  health() {
    return this.call("GET", "/health");
  }

  stream() {
    return this.call("GET", "/v1/stream");
  }
}

// The path of a subscription, whatever characters its id has.
export function subscriptionPath(id, rest = "") {
  return `${SUBSCRIPTIONS}/${encodeURIComponent(id)}${rest}`;
}

const UPDATES = "GET /v1/updates";

// A row with an id, so that a request that is sent again does not make another one. (`randomUUID` needs HTTPS.)
function named(row, column) {
  if ((row[column] ?? null) !== null || "unsubscribe" in row) return row;
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { ...row, [column]: id };
}

function queryOf(query) {
  const pairs = Object.entries(query).flatMap(([name, value]) => {
    if (value === null || value === undefined || value === "") return [];
    if (name === "region") return [[name, value.join(",")]];
    return [value].flat().map((one) => [name, one]);
  });
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

// The answer to one attempt, not read yet. Throws Transient and ClientError.
async function send(client, method, path, { query = {}, body, headers = {} }, signal) {
  const what = `${method} ${path}`;
  const key = typeof client.key === "function" ? client.key() : client.key;
  const all = { ...(body !== undefined && { "Content-Type": "application/json" }), ...(key !== null && { Authorization: `Bearer ${key}` }), ...headers };
  const request = { method, headers: all, body: JSON.stringify(body), cache: "no-store", redirect: "error", signal };
  let answer;
  let problem;
  try {
    answer = await fetch(client.url + path + queryOf(query), request);
    if (answer.ok) return answer;
    problem = await answer.text();
  } catch (error) {
    return lost(client, what)(error);
  }
  const error = errorOf(what, answer.status, problem);
  const waitMs = retryAfterMs(answer.headers);
  throw answer.status === 429 || (answer.status === 503 && waitMs !== null) ? new Transient(error, waitMs ?? 0) : error;
}

// The value of an answer, and its headers. Tries again as long as the client's patience is.
async function answered(client, method, path, { again = true, ...options } = {}) {
  const tries = new Tries(client.patienceS);
  for (;;) {
    try {
      const answer = await send(client, method, path, options, AbortSignal.timeout(client.timeoutS * 1000));
      return { value: await valueOf(client, `${method} ${path}`, answer), headers: answer.headers };
    } catch (failure) {
      if (!(failure instanceof Transient)) throw Object.assign(failure, { repeated: tries.count > 0 });
      if (failure.error.status === 0 && !again) throw failure.error;
      await tries.wait(failure);
    }
  }
}

async function valueOf(client, what, answer) {
  const isLines = answer.headers.get("content-type")?.startsWith("application/x-ndjson");
  const text = await answer.text().catch(lost(client, what));
  try {
    return isLines ? text.split("\n").filter(Boolean).map((line) => JSON.parse(line)) : JSON.parse(text || "null");
  } catch (error) {
    throw new ClientError(what, { reason: "bad_answer", status: answer.status, detail: `an answer that is none: ${error.message}`, do: "see that server and client are of one release" });
  }
}

// No answer, or none to its end: a function that throws.
const lost = (client, what, waitMs) => (error) => {
  const detail = `no answer from ${client.url || "the server"} (${error.cause?.message ?? error.message})`;
  throw new Transient(new ClientError(what, { reason: "unreachable", detail, do: "see whether it runs, and try again" }), waitMs);
};

function errorOf(what, status, text) {
  let problem = null;
  try {
    problem = JSON.parse(text);
  } catch {
    // it is no JSON
  }
  if (typeof problem?.reason === "string") return new ClientError(what, { ...problem, status });
  const detail = `status ${status}, from something that is no Skyray server`;
  return new ClientError(what, { status, detail, do: "check the address, and the proxies before it" });
}

// Of a header `Retry-After`: a number of seconds, or a date, which counts from the answer's own; null without one.
function retryAfterMs(headers) {
  const text = headers.get("retry-after")?.trim() ?? "";
  if (/^\d{1,9}$/.test(text)) return Number(text) * 1000;
  const ms = /^[a-z]/i.test(text) ? Date.parse(text) - Date.parse(headers.get("date") ?? "") : NaN;
  return Number.isNaN(ms) ? null : Math.max(0, ms);
}

// A position as boundary and index; without an index it is the end of its boundary.
function placeOf(position) {
  if (position === "begin") return [-1n, 0n];
  const found = POSITION.exec(position);
  if (found === null) throw new ClientError(UPDATES, { reason: "bad_position", detail: `since: ${String(position).slice(0, 60)} is no position of a stream`, do: "give a position that a stream had, or begin" });
  return [BigInt(found[1]), found[2] === undefined ? Infinity : BigInt(found[2])];
}

// The position from which a stream is whole again; null: from now.
function resumeOf({ before = null }) {
  return before === null ? null : String(BigInt(before.split("-")[0]) - 1n);
}
