// The page: starts its parts and hands updates to them. Read on in `stream.js`, `map.js`, `subscribe.js`.

import { Active } from "/page/active.js";
import { call, pathsOf } from "/page/api.js";
import { byId, show } from "/page/dom.js";
import { Drawing } from "/page/drawing.js";
import { WorldMap } from "/page/map.js";
import { Picked } from "/page/picked.js";
import { Place } from "/page/place.js";
import { PublishForm } from "/page/publish.js";
import { Status } from "/page/status.js";
import { UpdateStream } from "/page/stream.js";
import { SubscribeForm, endSubscription } from "/page/subscribe.js";
import { startTabs } from "/page/tabs.js";
import { Updates } from "/page/updates.js";
import { Why } from "/page/why.js";

const MOST_MESSAGES = 3000;

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
  const message = messages.get(seq) ?? picked.rows.get(seq);
  if (!message) return;
  world.centre(message.lon, message.lat);
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
const active = new Active((rows) => world.showSubscriptions(rows));
const picked = new Picked((columns) => {
  world.showPicked(columns);
  show(byId("only-label"), columns !== null);
  byId("only").checked = columns !== null && picked.hasResult;
  updates.narrow(byId("only").checked ? columns.subscription_id : null);
});
const form = new SubscribeForm(placeFields, {
  onKind: () => drawing.offer([...byId("shape").options].map((option) => option.value)),
  onSubscribed: async (id) => {
    world.showDrawn(null);
    active.load();
    await pick(id);
    if (matchMedia("(max-width: 760px)").matches) byId("picked").scrollIntoView();
  },
});
const publish = new PublishForm((message) => {
  remember(message);
  world.light(message.seq, message.lon, message.lat);
});

async function pick(id) {
  try {
    await picked.pick(id);
    for (const { seq, lon, lat } of picked.rows.values()) world.place(seq, lon, lat);
  } catch (error) {
    status.say(error.message);
  }
}

const stream = new UpdateStream("/v1/updates", {
  onUpdate: (update) => {
    updates.add(update);
    picked.take(update);
    remember(update);
    if (update.change !== "leave") world.light(update.seq, update.lon, update.lat);
  },
  onState: () => status.draw(),
  onGap: (gap) => status.gap(gap),
});
const status = new Status(stream, () => {
  active.load();
  picked.read().catch((error) => status.say(error.message));
});

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
byId("only").addEventListener("change", () => updates.narrow(byId("only").checked ? picked.id : null));
byId("picked-show").addEventListener("click", () => world.fit(picked.columns, [...picked.rows.values()]));
byId("picked-end").addEventListener("click", async () => {
  const { id } = picked;
  try {
    await endSubscription(id);
    picked.close();
    active.load();
  } catch (error) {
    status.say(error.message);
  }
});

function frame(now) {
  updates.draw(now);
  picked.draw();
  world.draw(now);
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);

async function start() {
  active.load();
  const paths = await pathsOf().catch(() => new Set());
  show(byId("preview"), paths.has("/v1/preview"));
  show(byId("would-reach"), paths.has("/v1/match"));
  show(byId("ask"), paths.has("/v1/explain"));
  if (!(await world.ready)) return;
  drawing.start();
  form.changeKind();
  drawing.offer([...byId("shape").options].map((option) => option.value));
  active.draw();
  document.documentElement.dataset.ready = "true";
}

setInterval(async () => {
  const health = stream.state === "live" ? await call("GET", "/health").catch(() => null) : null;
  if (!health) return;
  status.figures(health);
  if (health.subscriptions !== subscriptions) active.load(); // others subscribe too
  subscriptions = health.subscriptions;
}, 2000);
start();

// For tests, and for a look from the console.
globalThis.skyray = { stream, world };
