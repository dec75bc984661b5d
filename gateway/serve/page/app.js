// The page: starts its parts and hands updates to them. Read on in `stream.js`, `map.js`, `subscribe.js`.

import { Active } from "/page/active.js";
import { call, pathsOf } from "/page/api.js";
import { byId, once, show } from "/page/dom.js";
import { Drawing } from "/page/drawing.js";
import { onKey } from "/page/keys.js";
import { WorldMap } from "/page/map.js";
import { Picked } from "/page/picked.js";
import { Place } from "/page/place.js";
import { PublishForm } from "/page/publish.js";
import { Replay } from "/page/replay.js";
import { Status } from "/page/status.js";
import { UpdateStream } from "/page/stream.js";
import { SubscribeForm, endSubscription } from "/page/subscribe.js";
import { startTabs } from "/page/tabs.js";
import { Updates } from "/page/updates.js";
import { useAttributes } from "/page/where.js";
import { Why } from "/page/why.js";

const MOST_MESSAGES = 3000;
const LATEST = 100; // messages that the first view looks for
const MOST_ASKED = 100; // objects that are looked for at a time

let subscriptions = null; // how many are active
const messages = new Map(); // seq -> what is known of a message
const tabs = startTabs(document.querySelector("[role=tablist]"));
const updates = new Updates();
const why = new Why();

function remember(message) {
  messages.delete(message.seq);
  messages.set(message.seq, message);
  if (messages.size > MOST_MESSAGES) messages.delete(messages.keys().next().value);
}

function open(seq, subscription = picked.id) {
  const message = messages.get(seq) ?? [...picked.rows.values()].find((row) => row.seq === seq);
  if (!message) return;
  world.centre(message.lon, message.lat);
  ask(message, subscription);
}

function ask(message, subscription) {
  why.open(message, subscription, active.rows.map((columns) => columns.subscription_id));
}

const world = new WorldMap({
  onClick: (place) => {
    if (drawing.click(place)) return;
    if (tabs.selected() === "tab-publish") publish.place(place);
    else if (placeFields.shape === "point") placeFields.fill("point", place);
  },
  onPoint: (seq) => {
    if (!drawing.mode) open(seq);
  },
});
const placeFields = new Place(() => world.showDrawn(placeFields.columnsIfWhole()));
const drawing = new Drawing(world, (shape, found) => {
  tabs.select("tab-subscribe");
  placeFields.fill(shape, found);
});
const active = new Active((rows) => {
  world.showSubscriptions(rows);
  world.begin(rows, latest, facts.world);
});
const picked = new Picked((columns) => {
  world.showPicked(columns);
  show(byId("only-label"), columns !== null);
  byId("only").checked = columns !== null && picked.hasResult;
  narrow();
});
const form = new SubscribeForm(placeFields, {
  onKind: () => drawing.offer([...byId("shape").options].map((option) => option.value)),
  onSubscribed: async (id) => {
    world.showDrawn(null);
    active.load();
    await pick(id);
  },
});
const publish = new PublishForm((message) => {
  remember(message);
  world.points.light(message);
});

// The list has updates of the picked subscription alone, or of all.
function narrow() {
  const only = byId("only").checked ? picked.id : null;
  updates.narrow(only);
  stream.narrow?.(only);
}

async function pick(id) {
  try {
    await picked.pick(id);
    bringIntoSight("picked");
    for (const row of picked.rows.values()) world.points.place(row);
  } catch (error) {
    status.say(error.message);
  }
}

// On a phone the parts of the page stand below each other.
function bringIntoSight(id) {
  if (matchMedia("(max-width: 760px)").matches) byId(id).scrollIntoView();
}

// Messages that came last, as far as subscriptions have them.
async function lastMessages() {
  if (facts.run) return (await call("GET", "/v1/messages", { query: { through: facts.run.last, limit: LATEST }, quiet: true })).messages;
  const since = Math.max(-1, facts.next_seq - 1 - LATEST);
  const lines = await call("GET", "/v1/updates", { query: { since, poll: true, wait_s: 0, limit: LATEST }, quiet: true });
  return lines.filter((line) => line.change);
}

function follow() {
  return new UpdateStream({
    onUpdate: (update) => {
      updates.add(update);
      picked.take(update);
      remember(update);
      if (update.change === "leave") world.points.end(update.object_id, update.seq);
      else world.points.light(update);
    },
    onState: () => status?.draw(),
    onGap: (gap) => status.gap(gap),
    onRefused: (error) => status.say(error.message),
  });
}

function replay(run) {
  for (const id of ["tab-subscribe", "tab-publish", "draw-bar", "picked-end", "topology-link"]) show(byId(id), false);
  tabs.select("tab-active");
  byId("updates-empty").textContent = "No updates up to here.";
  return new Replay(run, {
    onStep: (came, changed, anew, whole) => {
      if (anew || (whole && came.some((message) => message.object_id))) world.points.clear();
      const lasting = new Set(came.map((message) => message.seq));
      for (const update of changed) {
        remember(update);
        if (update.object_id && !lasting.has(update.seq)) world.points.end(update.object_id, update.seq);
        else if (update.change === "leave") continue;
        else if (anew) world.points.place(update);
        else world.points.light(update);
      }
      for (const message of came) {
        remember(message);
        if (message.deleted) world.points.end(message.object_id);
        else world.points.place(message, true);
      }
      if (anew) updates.replace(changed);
      else for (const update of changed) updates.add(update);
    },
    onMove: async () => {
      await Promise.all([picked.read(), active.load()]);
      for (const row of picked.rows.values()) world.points.place(row);
    },
    onError: (error) => status.say(error.message),
  });
}

// What happens in a list: a row opens its message, or its subscription.
for (const id of ["updates", "results", "published"]) {
  byId(id).addEventListener("click", (event) => {
    const row = event.target.closest("button.row");
    if (row) open(Number(row.dataset.seq), row.parentElement.dataset.subscription ?? picked.id);
  });
}
byId("active").addEventListener("click", (event) => {
  const row = event.target.closest("button.row");
  if (row) pick(row.dataset.subscription);
});
byId("only").addEventListener("change", narrow);
byId("picked-show").addEventListener("click", () => {
  bringIntoSight("map");
  world.fit(picked.columns, [...picked.rows.values()]);
});
byId("picked-ask").addEventListener("click", () => ask(null, picked.id));
byId("picked-end").addEventListener("click", once(byId("picked-end"), async () => {
  const { id } = picked;
  try {
    await endSubscription(id);
    if (picked.id === id) picked.close();
    active.load();
  } catch (error) {
    status.say(error.message);
  }
}));

function frame(now) {
  updates.draw(now);
  picked.draw(now);
  world.points.draw(now);
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);

async function offer() {
  const paths = await pathsOf().catch(() => new Set());
  show(byId("preview"), paths.has("/v1/preview"));
  show(byId("would-reach"), paths.has("/v1/match"));
  show(byId("ask"), paths.has("/v1/explain"));
  latest = await lastMessages().catch(() => []);
  await firstRows;
  if (!(await world.ready)) return;
  drawing.start();
  form.changeKind();
  drawing.offer([...byId("shape").options].map((option) => option.value));
  active.draw();
  document.documentElement.dataset.ready = "true";
}

async function look() {
  if (!["live", "reconnecting"].includes(stream.state)) return;
  const health = await call("GET", "/health", { quiet: true }).catch(() => null);
  if (!health) return;
  status.figures(health);
  if (!("messages" in health)) return; // it starts
  if (health.subscriptions !== subscriptions) active.load(); // others subscribe too
  subscriptions = health.subscriptions;
  await followObjects();
}

// An object may move where nobody is told of it: its point follows the version that lives, some objects at a time.
async function followObjects() {
  const drawn = [...world.points.versions.keys()];
  if (!facts.objects || !drawn.length || document.hidden) return;
  if (turn >= drawn.length) turn = 0;
  const asked = drawn.slice(turn, turn + MOST_ASKED);
  turn += MOST_ASKED;
  const found = await call("GET", "/v1/objects", { query: { id: asked }, quiet: true }).catch(() => null);
  if (!found) return;
  const living = new Map(found.objects.map((version) => [version.object_id, version]));
  for (const id of asked.filter((one) => !living.has(one))) world.points.end(id);
  for (const version of living.values()) {
    remember(version);
    world.points.move(version);
  }
  const isOlder = ({ object_id: id, seq }) => seq < living.get(id)?.seq;
  if ([...picked.rows.values()].some(isOlder)) await picked.read();
}

let status = null;
let turn = 0;
let latest = [];
const facts = await call("GET", "/v1/stream").catch(() => ({}));
useAttributes(facts.attributes);
why.onSphere = facts.distance === "sphere";
const stream = facts.run ? replay(facts.run) : follow();
status = new Status(stream, () => {
  active.load();
  picked.read().catch((error) => status.say(error.message));
});
const firstRows = active.load();
onKey(() => (facts.kinds ? active.load() : location.reload())); // it was begun without access
setInterval(look, 2000);
offer();

// For tests, and for a look from the console.
globalThis.skyray = { stream, world };
