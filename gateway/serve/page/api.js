// Requests to the server that the page came from.

export class Refused extends Error {
  // `problem` is the body of an application/problem+json answer.
  constructor(problem) {
    super([problem.detail, problem.do].filter(Boolean).join(". To do: "));
    this.problem = problem;
  }
}

const GONE = { reason: "no_answer", detail: "The server does not answer", do: "see whether it runs, and try again" };

export async function call(method, path, body) {
  const sent = body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(path, { method, cache: "no-store", ...sent });
  } catch {
    throw new Refused(GONE);
  }
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused({ detail: `The server answered ${answer.status}`, ...found });
  return found;
}

export const subscriptionPath = (id, rest = "") => `/v1/subscriptions/${encodeURIComponent(id)}${rest}`;

// Which paths the server has: a page of another release hides what it cannot do.
export async function pathsOf() {
  const description = await call("GET", "/openapi.json");
  return new Set(Object.keys(description.paths ?? {}));
}
