/**
 * The checkout page: pays one order, with oncekey's client, and shows what happens meanwhile.
 *
 * What it must not forget is in localStorage: the order, how often Pay was pressed, and that it is
 * paid. The key of the payment is the client's to keep.
 */

import { Client, outcomeOf } from "/oncekey.js";

const PRICE = 2400;
const KEY = "Bearer sk_test_local"; // works on this machine only
const ORDER = "checkout/order";
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
};

const at = (id) => document.getElementById(id);
const put = (id, text) => (at(id).textContent = text);
const money = (minor) => (minor / 100).toFixed(2);

// ------------------------------------------------------------------------------------ the order

function newOrder() {
  const random = crypto.getRandomValues(new Uint8Array(5));
  const id = Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id: `order_${id}`, clicks: 0, key: null, paid: null };
}

/** As it is now, in whichever tab it was changed. */
function order() {
  try {
    return JSON.parse(localStorage.getItem(ORDER)) ?? changed(newOrder());
  } catch {
    return changed(newOrder());
  }
}

function changed(now) {
  localStorage.setItem(ORDER, JSON.stringify(now));
  return now;
}

// --------------------------------------------------------------------------------------- paying

let tunnel = false;
let elsewhere = new AbortController();

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

function watchAttempt({ what, attempt, retryInS, key }) {
  // Another tab may have been told, and let the key go, since we looked: then this one is a new key.
  if (what === "sending" && order().paid) elsewhere.abort(new Error("Paid already, in another tab."));
  else if (what === "sending") changed({ ...order(), key });
  if (what === "offline") say("You are offline. It is sent when you are back.");
  if (what === "sending" && attempt > 1) say(`Asking again, with the same key (try ${attempt}) …`);
  if (retryInS) say(`No answer. Asking again in ${retryInS.toFixed(1)} s, with the same key.`);
}

const intentOf = ({ id }) => `checkout/${id}/pay`;

function pressed() {
  const now = changed({ ...order(), clicks: order().clicks + 1 });
  draw();
  if (now.paid) return say(`Paid already: ${now.paid.id}. Nothing is sent.`, "good");
  return pay(now);
}

async function pay(now) {
  say("Paying …");
  try {
    const answer = await api.fetch("/v1/charges", {
      method: "POST",
      headers: { Authorization: KEY },
      body: new URLSearchParams({
        amount: String(PRICE),
        currency: "eur",
        source: "tok_visa",
        description: "Enamel mug, blue",
        "metadata[order]": now.id,
      }),
      intent: intentOf(now),
      settle: false,
      signal: elsewhere.signal,
    });
    await told(now, answer);
  } catch (error) {
    if (elsewhere.signal.aborted) await api.settle(intentOf(now));
    say(error.message, elsewhere.signal.aborted ? "good" : "bad");
  }
  refresh();
}

/** Write down that it is paid, then let the key go: no tab can come in between and pay again. */
async function told(now, answer) {
  const said = await answer.json();
  const { gaveUp, attempts, replayed } = outcomeOf(answer);
  if (gaveUp) return say(`${said.error?.message ?? answer.status} Press Pay to go on, with the same key.`, "bad");
  if (!answer.ok) {
    if (answer.status === 402) await api.settle(intentOf(now));
    return say(said.error?.message ?? `Refused: ${answer.status}`, "bad");
  }
  if (order().id === now.id) changed({ ...order(), paid: { id: said.id } });
  await api.settle(intentOf(now));
  const how = replayed ? ", as recorded for an earlier try" : attempts > 1 ? `, after ${attempts} tries` : "";
  draw();
  say(`Paid: ${said.id}${how}.`, "good");
}

function say(text, kind = "") {
  at("says").className = kind;
  put("says", text);
}

// -------------------------------------------------------------------------------------- drawing

function draw() {
  const now = order();
  put("order", now.id.replace("order_", ""));
  put("clicks", now.clicks);
  at("another").hidden = !now.paid;
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
    ["who", request === null ? "recovery" : `request ${request}`],
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

function drawTally({ requests, charges, moved, ledger, events, deliveries }) {
  put("requests", requests);
  put("charges", charges);
  put("charges-word", charges === 1 ? "charge" : "charges");
  put("moved", money(moved));
  for (const proof of document.querySelectorAll(".proof")) proof.classList.toggle("wrong", charges > 1);
  if (ledger.entries) {
    drawPart("ledger", ledger.sum === 0 ? "good" : "bad", `${ledger.entries} entries, their sum is ${ledger.sum}`);
  }
  if (events) {
    const sent = deliveries.succeeded ?? deliveries.delivered ?? 0;
    const all = Object.values(deliveries).reduce((sum, each) => sum + each, 0);
    const where = all ? `delivered to ${sent} of ${all}` : "nobody listens";
    drawPart("webhook", "good", `${events === 1 ? "an event" : `${events} events`}, ${where}`);
  }
}

// --------------------------------------------------------------------------------------- faults

let known = [];

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
  if (answer.ok) drawFaults((await answer.json()).data);
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
      const [tally, faults] = await Promise.all([read(`/demo/tally?${query}`), read("/demo/faults")]);
      drawTally(tally);
      drawFaults(faults.data);
      if (tally.deliveries.pending) refresh(1000);
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

function listen() {
  const source = new EventSource("/demo/watch");
  source.addEventListener("message", ({ data }) => {
    const notice = JSON.parse(data);
    if (notice.key !== null && notice.key !== order().key) return;
    drawNotice(notice);
    refresh();
  });
}

// ---------------------------------------------------------------------------------------- start

at("pay").addEventListener("click", pressed);
at("another").addEventListener("click", () => {
  changed(newOrder());
  elsewhere = new AbortController();
  at("log").replaceChildren();
  at("quiet").hidden = false;
  drawWay();
  draw();
  say("");
  refresh(0);
  at("pay").focus();
});
globalThis.addEventListener("storage", ({ key }) => {
  if (key !== ORDER) return;
  draw();
  refresh();
  if (order().paid) say(`Paid: ${order().paid.id}.`, "good");
});

drawWay();
drawFaults();
draw();
listen();
refresh(0);
const now = order();
if (now.paid) say(`Paid: ${now.paid.id}.`, "good");
else if ((await api.unsettled()).some(({ name }) => name === intentOf(now))) {
  await pay(now); // what a reload interrupted goes on, with its key
}
