/**
 * The checkout page: pays one order, with oncekey's client, and shows what happens meanwhile.
 *
 * A reload finds in localStorage which order it is, and under which key it is being paid. What tabs
 * must agree on, clicks and that it is paid, is where the client keeps its intents.
 */

import { Client, outcomeOf, usualShelf } from "/oncekey.js";

const PRICE = 2400;
const KEY = "Bearer sk_test_local"; // works on this machine only
const ORDER = "checkout/order";
const ORDER_ID = /^order_\w+$/;
/** What pressing Pay again does not mend: it was begun too long ago, or the page asked for something else then. */
const BEYOND_RETRY = new Set(["too-old", "mismatch", "settled"]);
const LOG_MAX = 40;

const PARTS = [
  ["client", "Client", '<path d="M4 5h16v11H4z M9 20h6 M12 16v4"/>'],
  ["limiter", "Limiter", '<path d="M4 18a8 8 0 1 1 16 0 M12 18l4-6"/>'],
  ["key", "Key", '<circle cx="8" cy="15" r="4"/><path d="M11 12l8-8 M15 8l3 3"/>'],
  ["handler", "Handler", '<path d="M8 6l-5 6 5 6 M16 6l5 6-5 6"/>'],
  ["network", "Card network", '<path d="M3 6h18v12H3z M3 10h18 M7 14h4"/>'],
  ["ledger", "Ledger", '<path d="M6 3h12v18H6z M9 8h6 M9 12h6 M9 16h3"/>'],
  ["webhook", "Webhook", '<path d="M4 12h12 M12 7l5 5-5 5 M20 5v14"/>'],
];
/** A fault of this page's own: the request leaves, and its answer does not come back. */
const OWN = { fault: "tunnel", explains: "Your own line is cut after sending: the answer never arrives here." };
const NAMES = {
  tunnel: "You drive into a tunnel",
  slow: "Slow network",
  "lost-answer-after": "Lost answer",
  "500-before": "500 before charging",
  "500-after": "500 after charging",
  reset: "Connection reset",
  "crash-before": "Crash before commit",
  "crash-after": "Crash after charging",
  "webhook-answer": "Webhook’s answer lost",
};

const at = (id) => document.getElementById(id);
const put = (id, text) => (at(id).textContent = text);
/** A number of the tally, with its word. */
const putCount = (word, number) => {
  put(`${word}s`, number);
  put(`${word}s-word`, number === 1 ? word : `${word}s`);
};
const money = (minor) => (minor / 100).toFixed(2);

// ------------------------------------------------------------------------------------ the order

function newOrder() {
  const random = crypto.getRandomValues(new Uint8Array(5));
  const id = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id: `order_${id}`, key: null };
}

let here = null;

function order() {
  const now = keptOrder() ?? here;
  if (now) return now;
  try {
    return changed(newOrder());
  } catch {
    return here; // nothing can be kept: Pay says so
  }
}

/** Null for none, and for what is none: all pages of one address keep their things in one place. */
function keptOrder() {
  try {
    const found = JSON.parse(localStorage.getItem(ORDER));
    return ORDER_ID.test(found?.id) ? found : null;
  } catch {
    return null;
  }
}

function changed(now) {
  here = now;
  localStorage.setItem(ORDER, JSON.stringify(now));
  return now;
}

const shelf = usualShelf();
const tabs = new BroadcastChannel("checkout");
const clicksOf = ({ id }) => `checkout/clicks/${id}`;
const paidOf = ({ id }) => `checkout/paid/${id}`;
const kept = async (name) => (await shelf.all(name))[0];

// --------------------------------------------------------------------------------------- paying

let tunnel = false;

const api = new Client({
  profile: "stripe",
  onAttempt: watchAttempt,
  world: {
    fetch: async (request) => {
      const answer = await fetch(request);
      if (!tunnel) return answer;
      tunnel = false;
      drawFaults();
      throw new TypeError("the answer was lost in a tunnel");
    },
  },
});

function watchAttempt({ what, attempt, retryInS, intent, key }) {
  const now = order();
  if (what === "sending" && intent === intentOf(now)) changed({ ...now, key });
  if (what === "offline") say("You are offline. It is sent when you are back.");
  if (what === "sending" && attempt > 1) say(`Asking again, with the same key (try ${attempt}) …`);
  if (retryInS) say(`No answer. Asking again in ${retryInS.toFixed(1)} s, with the same key.`);
}

const intentOf = ({ id }) => `checkout/${id}/pay`;

async function pressed() {
  const now = order();
  await shelf.update(clicksOf(now), (clicks = 0) => clicks + 1);
  tabs.postMessage("pressed");
  await draw();
  await pay(now);
}

async function attempted(work) {
  try {
    await work();
  } catch (error) {
    const isUnkept = error.kind === "no-storage" || error instanceof DOMException;
    const unkept = "Nothing is sent, because this browser keeps nothing for this page. Allow it to, then reload.";
    say(isUnkept ? unkept : error.message, "bad");
    if (BEYOND_RETRY.has(error.kind)) at("another").hidden = false;
  }
  refresh();
}

/** What is paid is settled under its name: whichever tab asks again is given the answer that there was. */
async function pay(now) {
  say("Paying …");
  const paid = await kept(paidOf(now)); // the server forgets it after a day; this page does not
  if (paid) return say(`Paid already: ${paid}. Nothing is sent.`, "good");
  await told(now, await api.fetch("/v1/charges", { ...request(now), intent: intentOf(now) }));
}

/** The same each time: a key belongs to one request. */
function request({ id }) {
  const said = { amount: PRICE, currency: "eur", source: "tok_visa", description: "Enamel mug, blue" };
  return {
    method: "POST",
    headers: { Authorization: KEY },
    body: new URLSearchParams({ ...said, "metadata[order]": id }),
  };
}

async function told(now, answer) {
  const said = await answer.json();
  const { settled, attempts, replayed, remembered } = outcomeOf(answer);
  if (answer.ok) await shelf.update(paidOf(now), () => said.id);
  tabs.postMessage("told");
  await draw();
  if (order().id !== now.id) return; // another tab has gone on to the next one
  if (!answer.ok) {
    const more = settled ? "" : " Press Pay to go on, with the same key.";
    at("another").hidden = !settled;
    return say((said.error?.message ?? `Refused: ${answer.status}.`) + more, "bad");
  }
  if (remembered) return say(`Paid already: ${said.id}. Nothing is sent.`, "good");
  const how = replayed ? ", as recorded for an earlier try" : attempts > 1 ? `, after ${attempts} tries` : "";
  say(`Paid: ${said.id}${how}.`, "good");
}

function say(text, kind = "") {
  at("says").className = kind;
  put("says", text);
}

// -------------------------------------------------------------------------------------- drawing

async function draw() {
  const now = order();
  const [clicks, paid] = await Promise.all([kept(clicksOf(now)), kept(paidOf(now))]);
  put("order", now.id.replace("order_", ""));
  putCount("click", clicks ?? 0);
  at("another").hidden = !paid;
  return paid;
}

function drawPart(name, kind, says) {
  const part = at(`part-${name}`);
  part.className = `part ${kind}`;
  part.querySelector(".does").textContent = says;
}

function drawWay() {
  const parts = PARTS.map(([name, title, icon]) => {
    const part = document.createElement("li");
    part.id = `part-${name}`;
    part.className = "part";
    const dot = document.createElement("span");
    dot.className = "dot";
    dot.setAttribute("aria-hidden", "true");
    dot.innerHTML = `<svg viewBox="0 0 24 24">${icon}</svg>`;
    const label = document.createElement("span");
    label.className = "name";
    label.textContent = title;
    const does = document.createElement("span");
    does.className = "does";
    part.append(dot, label, does);
    return part;
  });
  at("way").replaceChildren(...parts);
}

function drawNotice({ request, part, kind, says }) {
  drawPart(part, kind, says);
  const line = document.createElement("li");
  const cells = [
    ["who", request ? `request ${request}` : "event"],
    ["where", PARTS.find(([name]) => name === part)?.[1] ?? part],
    ["what", says],
  ];
  for (const [name, text] of cells) {
    const cell = document.createElement("span");
    cell.className = name;
    cell.textContent = text;
    line.append(cell);
  }
  at("log").prepend(line);
  while (at("log").childElementCount > LOG_MAX) at("log").lastElementChild.remove();
  at("quiet").hidden = true;
}

function drawTally({ requests, charges, moved, ledger, events, deliveries, listener }) {
  putCount("request", requests);
  putCount("charge", charges ?? "…"); // the card network is down, and comes back
  put("moved", charges === null ? "…" : money(moved));
  for (const proof of document.querySelectorAll(".proof")) proof.classList.toggle("wrong", charges > 1);
  if (ledger.entries) {
    drawPart("ledger", ledger.sum === 0 ? "good" : "bad", `${ledger.entries} entries, their sum is ${ledger.sum}`);
  }
  if (listener) drawPart("webhook", ...heardOf(listener));
  else if (events) {
    const sent = deliveries.delivered ?? 0;
    const all = Object.values(deliveries).reduce((sum, each) => sum + each, 0);
    const where = all ? `delivered to ${sent} of ${all}` : "nobody listens";
    drawPart("webhook", "good", `${events === 1 ? "an event" : `${events} events`}, ${where}`);
  }
}

/** How the way ends: an event waits, is sent until that is acknowledged, and is processed once. */
function heardOf({ status, attempts, failed, processed }) {
  const done = processed === 1 ? "processed once" : `processed ${processed} times`;
  if (processed > 1) return ["bad", done];
  const how = attempts === 1 ? "signed, delivered" : `sent ${attempts} times`;
  if (status === "delivered") return ["good", `${how}, ${done}`];
  if (status !== "pending") return ["bad", `an event, ${status}`];
  if (failed) return ["warn", processed ? "processed, not acknowledged: sent again" : "not delivered: sent again"];
  return ["busy", attempts ? `an event is sent: attempt ${attempts}` : "an event waits in the outbox"];
}

// --------------------------------------------------------------------------------------- faults

let known = [];
let flips = 0;

function drawFaults(listed = known) {
  known = listed;
  const all = [...listed, { ...OWN, times: tunnel ? 1 : 0 }];
  if (at("faults").childElementCount !== all.length) at("faults").replaceChildren(...all.map(switchOf));
  for (const { fault, times } of all) at(`fault-${fault}`).setAttribute("aria-checked", String(times > 0));
}

function switchOf({ fault, explains }) {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.id = `fault-${fault}`;
  button.className = "switch";
  button.setAttribute("role", "switch");
  for (const [name, text] of [["knob", ""], ["name", NAMES[fault] ?? fault], ["explains", explains]]) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = text;
    button.append(part);
  }
  button.addEventListener("click", () => flip(fault, button.getAttribute("aria-checked") !== "true"));
  item.append(button);
  return item;
}

async function flip(fault, on) {
  if (fault === OWN.fault) {
    tunnel = on;
    return drawFaults();
  }
  const body = JSON.stringify({ times: on ? 1 : 0 });
  const answer = await fetch(`/demo/faults/${fault}`, { method: "PUT", body });
  if (!answer.ok) return;
  const { data } = await answer.json();
  flips += 1; // what was asked before is older, however late its answer comes
  drawFaults(data);
}

// ------------------------------------------------------------------------------------- watching

let due;

/** Soon, and once for many reasons. */
function refresh(inMs = 120) {
  clearTimeout(due);
  due = setTimeout(async () => {
    const { id, key } = order();
    const query = new URLSearchParams({ order: id, key: key ?? "" });
    try {
      const tally = await read(`/demo/tally?${query}`);
      drawTally(tally);
      const before = flips;
      const { data } = await read("/demo/faults");
      if (flips === before) drawFaults(data);
      if (tally.charges === null) refresh(500);
      else if (tally.deliveries.pending) refresh(1000);
    } catch {
      refresh(500); // the card network is being started again
    }
  }, inMs);
}

async function read(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

let source;
let latest;

/** While the page is seen: a browser has six connections to a host, for all tabs together. */
function listen() {
  source?.close();
  if (document.hidden) return;
  source = new EventSource(`/demo/watch${latest === undefined ? "" : `?after=${latest}`}`);
  latest ??= 0;
  source.addEventListener("message", ({ data, lastEventId }) => {
    const notice = JSON.parse(data);
    latest = lastEventId;
    if (notice.key !== order().key) return;
    drawNotice(notice);
    refresh();
  });
}

// ---------------------------------------------------------------------------------------- start

at("pay").addEventListener("click", () => attempted(pressed));
at("another").addEventListener("click", () => attempted(another));
tabs.addEventListener("message", ({ data }) => attempted(data === "another" ? begin : follow));

/** That the one before is paid stays written down: another tab may just be about to pay it. */
async function another() {
  const before = order();
  changed(newOrder());
  await shelf.update(clicksOf(before), () => undefined);
  tabs.postMessage("another");
  await begin();
  at("pay").focus();
}

async function follow() {
  const paid = await draw();
  if (paid) say(`Paid: ${paid}.`, "good");
}

async function begin() {
  at("log").replaceChildren();
  at("quiet").hidden = false;
  drawWay();
  refresh(0);
  const paid = await draw();
  say(paid ? `Paid: ${paid}.` : "", "good");
}

/** What a reload interrupted goes on, with its key. */
async function resume() {
  await begin();
  if ((await api.unsettled()).some(({ name }) => name === intentOf(order()))) await pay(order());
}

drawFaults();
document.addEventListener("visibilitychange", listen);
// With a key there is something to be told of what was before this page: a reload forgets nothing.
if (order().key) latest = 0;
listen();
await attempted(resume);
