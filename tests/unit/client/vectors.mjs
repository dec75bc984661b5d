// What the client `process.argv[2]` does with the vectors of `process.argv[3]`, as JSON: without a socket, and without waiting.

import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const { Client } = await import(pathToFileURL(process.argv[2]));
const { streams, calls } = JSON.parse(await readFile(process.argv[3], "utf-8"));
const SILENCE_MS = 15_000;
const HEADERS = ["content-type", "if-match", "if-none-match", "last-event-id"];
const realTimer = globalThis.setTimeout;

let answers = [];
let requests = [];
let waits = [];
let silence = null;

Math.random = () => 1;
globalThis.setTimeout = (done, ms) => {
  if (ms === SILENCE_MS) {
    silence = done;
    return realTimer(done, 1e6);
  }
  waits.push(ms);
  return realTimer(done, 0);
};
globalThis.fetch = async (url, { method, headers, body, signal }) => {
  const { pathname, searchParams } = new URL(url);
  const kept = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]).filter(([name]) => HEADERS.includes(name));
  requests.push({ method, path: pathname, query: String(searchParams), headers: Object.fromEntries(kept), body: body === undefined ? null : JSON.parse(body) });
  const { status = 200, headers: given, json, chunks, end } = answers.shift() ?? {};
  if (json !== undefined) return new Response(JSON.stringify(json), { status, headers: given });
  if (chunks === undefined) throw new TypeError("fetch failed");
  const coming = [...chunks];
  return new Response(new ReadableStream({
    start: (controller) => signal.addEventListener("abort", () => controller.error(signal.reason)),
    pull: (controller) => {
      if (coming.length) controller.enqueue(coming.shift());
      else if (end === "closed") controller.close();
      else if (end === "lost") controller.error(new TypeError("terminated"));
      else setImmediate(() => silence());
    },
  }, { highWaterMark: 0 }));
};

async function outcome(vector, cut, action) {
  const encoder = new TextEncoder();
  answers = vector.answers.map(({ chunks, ...rest }) => ({ ...rest, ...(chunks && { chunks: cut(chunks.map((chunk) => encoder.encode(chunk))) }) }));
  [requests, waits] = [[], []];
  const client = new Client("http://127.0.0.1:1/", { patienceS: 2 });
  let found;
  try {
    found = await action(client);
  } catch (error) {
    found = { reason: error.reason ?? error.stack };
  }
  return { ...found, requests, waits_ms: waits.map(Math.round) };
}

const BRIEF = { update: ({ id, text }) => [id, text], progress: ({ through }) => [through], snapshot: ({ as_of }) => [as_of], gap: ({ reason }) => [reason] };

const followed = (vector, cut) => outcome(vector, cut, async (client) => {
  const { gaps, everything = true, ...options } = vector.options;
  const events = [];
  let updates = null;
  let reason = null;
  try {
    updates = client[everything ? "events" : "updates"]({ subscription: "s", patienceS: 2, onGap: gaps && (() => {}), ...options });
    for await (const found of updates) {
      const { type, data } = everything ? found : { type: "update", data: found };
      events.push([type, ...BRIEF[type](data)]);
    }
  } catch (error) {
    reason = error.reason ?? error.stack;
  }
  const { position = null, through = -1, connections = 0 } = updates ?? {};
  return { events, position, through, connections, reason };
});

const called = (vector) => outcome(vector, (chunks) => chunks, async (client) => {
  const found = client[vector.call](...vector.args, vector.options);
  if (!found[Symbol.asyncIterator]) return { value: await found };
  const value = [];
  for await (const one of found) value.push(one);
  return { value };
});

const byBytes = (chunks) => chunks.flatMap((chunk) => Array.from(chunk, (byte) => Uint8Array.of(byte)));
const results = { streams: {}, calls: {} };
for (const [name, vector] of Object.entries(streams)) {
  results.streams[name] = [await followed(vector, (chunks) => chunks), await followed(vector, byBytes)];
}
for (const [name, vector] of Object.entries(calls)) results.calls[name] = await called(vector);
process.stdout.write(JSON.stringify(results));
