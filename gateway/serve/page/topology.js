// The page of the topology: counts of the stream, of each component its rates, queue, busy share and latency, and of
// each source and sink how far it is.

import { call } from "/page/api.js";
import { byId, element, show } from "/page/dom.js";

const EVERY_MS = 1500;

const whole = (value) => Math.round(value).toLocaleString("en");
const milliseconds = (seconds) => (seconds === null || seconds === undefined ? "–" : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`);
const quietly = (path) => call("GET", path).catch(() => null);

let before = null;

// A second's worth of a count that grows, since the last look.
function rate(name, now, at) {
  const earlier = before?.counts[name];
  return earlier === undefined ? null : Math.max(0, ((now - earlier) * 1000) / (at - before.at));
}

// What of `end` is counted is per second; a source has messages, a sink updates, webhooks batches.
function endsOf({ source, sinks = [], webhooks }) {
  const ends = sinks.map((one) => ({ name: one.name, state: one.state, error: one.error, position: one.position, updates: one.delivered, waiting: one.waiting, lost: one.lost }));
  if (source) {
    const places = Object.entries(source.durable).map(([partition, offset]) => `${partition}: ${whole(offset)}`);
    ends.unshift({ name: source.name, state: source.state, error: source.error, position: places.join(", "), messages: source.records, waiting: source.lag, lost: source.removed });
  }
  if (webhooks && webhooks.active + webhooks.paused + webhooks.disabled) {
    const states = ["active", "paused", "disabled"].filter((state) => webhooks[state]).map((state) => `${whole(webhooks[state])} ${state}`);
    const position = webhooks.lag ? `${whole(webhooks.lag)} messages behind` : "up to date";
    ends.push({ name: "webhooks", state: states.join(", "), position, waiting: webhooks.waiting, lost: webhooks.dead });
  }
  return ends;
}

function drawEnds(topology, counts, at) {
  const ends = topology ? endsOf(topology) : [];
  const perSecond = (one, what) => {
    if (one[what] === undefined) return "";
    counts[`${one.name} ${what}`] = one[what];
    const found = rate(`${one.name} ${what}`, one[what], at);
    return found === null ? "–" : whole(found);
  };
  byId("ends").replaceChildren(...ends.map((one) => element("tr", { dataset: { end: one.name } },
    element("th", { scope: "row" }, one.name),
    element("td", {}, one.state, one.error ? element("p", { className: "failed" }, one.error) : null),
    element("td", {}, one.position ?? "–"),
    element("td", {}, perSecond(one, "messages")),
    element("td", {}, perSecond(one, "updates")),
    element("td", {}, one.waiting === null ? "–" : whole(one.waiting)),
    element("td", {}, whole(one.lost)))));
  show(byId("ends-box"), ends.length > 0);
}

function draw(health, topology) {
  const at = performance.now();
  const counts = { messages: health.messages };
  const messages = rate("messages", health.messages, at);
  const tiles = [
    ["Messages", whole(health.messages)],
    ["Messages/s", messages === null ? "–" : whole(messages)],
    ["Active subscriptions", whole(health.subscriptions)],
    ["Messages behind", whole(Math.max(0, health.next_seq - 1 - health.complete_through))],
    ["Clients that follow", whole(health.clients)],
    ["Rows waiting", whole(health.waiting)],
    ["Refused", whole(health.refused)],
  ];
  if (topology) tiles.push(["Latency p50", milliseconds(topology.latency_p50_s)], ["Latency p99", milliseconds(topology.latency_p99_s)]);
  byId("tiles").replaceChildren(...tiles.map(([name, value]) => element("div", { className: "tile" }, element("dt", {}, name), element("dd", {}, value))));
  const components = Object.values(topology?.topology?.components ?? {});
  const rows = components.map((part) => {
    counts[`${part.name} in`] = part.received;
    counts[`${part.name} out`] = part.emitted;
    const [came, went] = [rate(`${part.name} in`, part.received, at), rate(`${part.name} out`, part.emitted, at)];
    const busy = part.busy_share ?? 0;
    const cells = [part.tasks, came === null ? "–" : whole(came), went === null ? "–" : whole(went), whole(part.queue_depth)];
    const meter = element("meter", { min: 0, max: 1, value: busy, attributes: { "aria-label": `busy share of ${part.name}` } });
    return element("tr", {},
      element("th", { scope: "row" }, part.name),
      ...cells.map((text) => element("td", {}, String(text))),
      element("td", {}, meter, `${Math.round(busy * 100)} %`),
      element("td", {}, milliseconds(part.latency_p50_s)),
      element("td", {}, milliseconds(part.latency_p99_s)));
  });
  byId("components").replaceChildren(...rows);
  drawEnds(topology, counts, at);
  show(byId("components-box"), rows.length > 0);
  show(byId("no-components"), rows.length === 0);
  before = { at, counts };
}

async function look() {
  const [health, topology] = await Promise.all([quietly("/health"), paths.has("/v1/topology") ? quietly("/v1/topology") : null]);
  byId("status").dataset.state = health ? "live" : "reconnecting";
  byId("status-word").textContent = !health ? "Reconnecting" : health.doing ? `Starting: ${health.doing}` : "Live";
  if (health && "messages" in health) draw(health, topology);
  setTimeout(look, EVERY_MS);
}

const paths = new Set(Object.keys((await quietly("/openapi.json"))?.paths ?? {}));
look();
