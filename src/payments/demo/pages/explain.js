/** The explainer: draws the step that the player shows. */

import { Player } from "./player.js";

const LEASE_S = 30;
const KINDS = { waits: "", runs: "busy", dead: "bad", frozen: "warn", gone: "" };
const STATES = { running: "busy", lapsed: "warn", completed: "good", released: "", unknown: "bad" };

const at = (id) => document.getElementById(id);
const put = (id, text) => (at(id).textContent = text);
const money = (minor) => (minor / 100).toFixed(2);

const { tour_s: tourS, scenarios } = await (await fetch("/pages/recordings.json")).json();
const player = new Player(scenarios, tourS * 1000, draw);

// -------------------------------------------------------------------------------- drawing

function draw() {
  const { frame, previous } = player;
  drawChoice();
  drawWire(frame.arrow);
  drawClient();
  drawServers(frame);
  drawRecord(frame.record, previous?.record);
  drawNetwork(frame, previous);
  put("caption", frame.caption);
  put("detail", frame.detail);
  drawEvents(frame.events);
  const { caption, detail, ...facts } = frame;
  put("facts", JSON.stringify(facts, null, 2));
  drawControls(frame);
}

function drawChoice() {
  for (const [index, tab] of [...at("scenarios").children].entries()) {
    const chosen = index === player.scenario;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  at("play").setAttribute("aria-labelledby", `scenario-${player.scenario}`);
}

function drawWire(arrow) {
  const message = at("message");
  at("wire").classList.toggle("broken", Boolean(arrow?.lost));
  message.className = "message";
  message.textContent = arrow ? words(arrow) : "";
  if (!arrow) return;
  const refused = arrow.answer && arrow.answer.status >= 400;
  const kind = arrow.lost ? "lost" : arrow.request ? "request" : refused ? "refusal" : "answer";
  void message.offsetWidth; // so that the movement begins anew
  message.classList.add(kind, arrow.from === "client" ? "right" : "left");
}

function words({ request, answer, lost }) {
  if (request) return `→ ${request.line}\nkey ${request.key}\n${request.body}`;
  const end = lost ? "\n✕ lost on the way" : "";
  if (!answer) return `✕ no answer`;
  const marks = Object.entries(answer.headers).map(([name, value]) => `\n${name}: ${value}`);
  const said = answer.status < 400 ? answer.body : JSON.parse(answer.body).title;
  return `← ${answer.status}${marks.join("")}\n${said}${end}`;
}

/** What the client knows follows from what reached it so far. */
function drawClient() {
  const seen = player.frames.slice(0, player.step + 1).map(({ arrow }) => arrow);
  const sent = player.frames.find(({ arrow }) => arrow?.request)?.arrow;
  const heard = seen.filter((arrow) => arrow?.answer && !arrow.lost).at(-1);
  put("client-key", sent ? `key ${sent.request.key}` : "");
  put("client-knows", heard ? `was told ${heard.answer.status}` : "knows nothing yet");
}

function drawServers({ servers, arrow }) {
  const cards = Object.entries(servers).map(([name, { state, release }]) => {
    const card = document.createElement("div");
    const talks = arrow && [arrow.from, arrow.to].includes(name);
    card.className = `card server ${state} ${talks ? "talks" : ""}`;
    const title = document.createElement("h2");
    title.textContent = `Server ${name}`;
    const pill = document.createElement("span");
    pill.className = `pill ${KINDS[state]}`;
    pill.textContent = state;
    const about = document.createElement("p");
    about.className = "small soft";
    about.textContent = `release ${release}`;
    card.append(title, pill, about);
    return card;
  });
  at("servers").replaceChildren(...cards);
}

function drawRecord(record, before) {
  const state = record?.state ?? "none";
  at("record-state").className = `pill ${STATES[state] ?? ""}`;
  put("record-state", state);
  const values = {
    fence: record?.fence ?? "–",
    attempt: record?.attempt ?? "–",
    answer: record?.status ? `${record.status}, v${record.schema_version}` : "–",
  };
  const earlier = {
    fence: before?.fence ?? "–",
    attempt: before?.attempt ?? "–",
    answer: before?.status ? `${before.status}, v${before.schema_version}` : "–",
  };
  for (const [name, value] of Object.entries(values)) {
    const cell = at(`record-${name}`);
    cell.textContent = value;
    cell.classList.toggle("changed-value", String(value) !== String(earlier[name]));
  }
  const changed = JSON.stringify(record) !== JSON.stringify(before ?? null);
  at("record").classList.toggle("changed", player.step > 0 && changed);
  const left = record?.lease_left_s ?? null;
  at("record-lease").style.width = `${((left ?? 0) / LEASE_S) * 100}%`;
  put("record-lease-text", left === null ? "" : left > 0 ? `lease: ${left} s left` : "lease: over");
}

function drawNetwork({ charges, network_asked: asked }, before) {
  put("charges", charges.length);
  put("charges-word", charges.length === 1 ? "charge" : "charges");
  put("asked", asked === 0 ? "not asked yet" : asked === 1 ? "asked once" : `asked ${asked} times`);
  const coins = charges.map((amount) => {
    const coin = document.createElement("span");
    coin.className = "pill good";
    coin.textContent = `${money(amount)} EUR`;
    return coin;
  });
  at("coins").replaceChildren(...coins);
  const changed = player.step > 0 && asked !== before?.network_asked;
  at("network").classList.toggle("changed", changed);
}

/** The engine's own words for what it just did. */
function drawEvents(events) {
  const tags = events.map(({ server, event }) => {
    const tag = document.createElement("span");
    tag.className = "pill";
    tag.textContent = `${server}: ${event}`;
    return tag;
  });
  at("events").replaceChildren(...tags);
}

function drawControls(frame) {
  const end = player.frames.length - 1;
  at("scrub").max = String(end);
  at("scrub").value = String(player.step);
  at("scrub").setAttribute("aria-valuetext", `Step ${player.step + 1} of ${end + 1}: ${frame.caption}`);
  put("time", `t = ${frame.at_s.toFixed(1)} s`);
  const playing = player.direction !== 0;
  put("toggle", playing ? "Stop" : "Play");
  at("toggle").setAttribute("aria-label", playing ? "Stop" : "Play");
  at("rewind").setAttribute("aria-pressed", String(player.direction < 0));
  at("first").disabled = at("back").disabled = player.step === 0;
  at("last").disabled = at("next").disabled = player.step === end;
}

// ------------------------------------------------------------------------------- controls

function toggle() {
  if (player.direction === 0) player.play();
  else player.stop();
}

function choose(index) {
  player.show(0, index);
  at("scenarios").children[index].focus();
}

const clicks = {
  first: () => player.show(0),
  back: () => player.show(player.step - 1),
  next: () => player.show(player.step + 1),
  last: () => player.show(player.frames.length - 1),
  toggle,
  rewind: () => (player.direction < 0 ? player.stop() : player.play(-1)),
  tour: () => player.tour(),
};
for (const [id, act] of Object.entries(clicks)) at(id).addEventListener("click", act);
at("scrub").addEventListener("input", () => player.show(Number(at("scrub").value)));

/** A control that has the focus keeps the keys that are its own. */
function ownKeys(target) {
  if (target.matches("input")) return ["ArrowLeft", "ArrowRight", "Home", "End"];
  return target.matches("button, summary, a") ? [" "] : [];
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (ownKeys(event.target).includes(event.key)) return;
  const inTabs = event.target.matches("[role=tab]");
  const last = scenarios.length - 1;
  const acts = {
    ArrowRight: () => (inTabs ? choose(Math.min(player.scenario + 1, last)) : clicks.next()),
    ArrowLeft: () => (inTabs ? choose(Math.max(player.scenario - 1, 0)) : clicks.back()),
    Home: () => (inTabs ? choose(0) : clicks.first()),
    End: () => (inTabs ? choose(last) : clicks.last()),
    " ": toggle,
  };
  const number = Number(event.key);
  const act = acts[event.key] ?? (number >= 1 && number <= last + 1 ? () => choose(number - 1) : null);
  if (!act) return;
  event.preventDefault();
  act();
});

at("scenarios").append(
  ...scenarios.map(({ title }, index) => {
    const tab = document.createElement("button");
    tab.id = `scenario-${index}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "play");
    tab.textContent = title;
    tab.addEventListener("click", () => choose(index));
    return tab;
  }),
);
put("tour-s", tourS);
player.show(0, 0);
