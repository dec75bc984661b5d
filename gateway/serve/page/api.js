// Requests to the server that the page came from.

import { keyOf, refuseKey } from "/page/keys.js";

export class Refused extends Error {
  // `problem` is the body of an application/problem+json answer.
  constructor(problem) {
    const what = problem.reason === "missing_scope" ? `Your key does not allow this: ${problem.detail}` : problem.detail;
    super([what, problem.do].filter(Boolean).join(". To do: "));
    this.problem = problem;
  }
}

const GONE = { reason: "no_answer", detail: "The server does not answer", do: "see whether it runs, and try again" };

// `quiet`: a request of the page itself, for which the user is not prompted for a key.
export async function call(method, path, body, { quiet = false } = {}) {
  const answer = await send(method, path, body, quiet);
  return answer.json().catch(() => ({}));
}

// As `call`, for lines of JSON.
export async function callLines(path, { quiet = false } = {}) {
  const text = await (await send("GET", path, undefined, quiet)).text();
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

async function send(method, path, body, quiet = false) {
  for (;;) {
    const key = keyOf();
    const headers = { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
    let answer;
    try {
      answer = await fetch(path, { method, cache: "no-store", headers, body: body === undefined ? undefined : JSON.stringify(body) });
    } catch {
      throw new Refused(GONE);
    }
    if (answer.ok) return answer;
    const problem = { detail: `The server answered ${answer.status}`, status: answer.status, ...(await answer.json().catch(() => ({}))) };
    if (answer.status !== 401 || !(await refuseKey(problem.reason, key, !quiet))) throw new Refused(problem);
  }
}

export function withQuery(path, query) {
  const there = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return there.length ? `${path}?${new URLSearchParams(there)}` : path;
}

// Of a run that is replayed: the message as of which it is looked at; null for a live stream.
let asOf = null;
export const lookAt = (seq) => {
  asOf = seq;
};
export const pathNow = (path, query = {}) => withQuery(path, { ...query, as_of: asOf });

export const subscriptionPath = (id, rest = "") => `/v1/subscriptions/${encodeURIComponent(id)}${rest}`;

// Which paths the server has: a page of another release hides what it cannot do.
export async function pathsOf() {
  const description = await call("GET", "/openapi.json");
  return new Set(Object.keys(description.paths ?? {}));
}
