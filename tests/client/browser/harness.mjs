// The module in Node, in virtual time: one command per line in, one answer per line out.
// usage: node harness.mjs URL_OF_THE_MODULE

import { createInterface } from "node:readline";

const oncekey = await import(process.argv[2]);
const encoder = new TextEncoder();

/** Time that passes only when nobody has anything left to do; chance and faults by a script. */
class World {
  time = 0;
  wallAt = 1_000_000;
  timers = [];
  attempts = [];
  pauses = [];
  effects = {};
  connected = true;
  waiting = [];
  shelf = oncekey.memoryShelf();

  constructor({ faults = [], chances = [0.5], offline = [], isHere = false, roomBytes = Infinity }) {
    const { update } = this.shelf;
    this.shelf.update = (name, change) =>
      update(name, (before) => {
        const after = change(before);
        if (JSON.stringify(after ?? null).length > roomBytes) {
          throw new DOMException("no room", "QuotaExceededError");
        }
        return after;
      });
    this.isHere = isHere; // the server is: it is reached without a network
    this.faults = [...faults];
    this.chances = chances;
    this.drawn = 0;
    for (const [from, to] of offline) {
      if (from === 0) this.connected = false;
      else this.at(from, () => (this.connected = false));
      this.at(to, () => {
        this.connected = true;
        this.waiting.splice(0).forEach((go) => go());
      });
    }
  }

  at(time, go) {
    const timer = { time, go };
    this.timers.push(timer);
    return () => (this.timers = this.timers.filter((each) => each !== timer));
  }

  wait(signal, begin) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const end = begin(resolve);
      signal?.addEventListener("abort", () => {
        end();
        reject(signal.reason);
      });
    });
  }

  given() {
    return {
      now: () => this.time,
      wall: () => this.wallAt + this.time,
      chance: () => this.chances[this.drawn++ % this.chances.length],
      bytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
      sleep: (seconds, signal) => this.wait(signal, (go) => this.at(this.time + seconds, go)),
      online: () => this.connected,
      back: (signal) => this.wait(signal, (go) => (this.waiting.push(go), () => undefined)),
      fetch: (request) => this.fetch(request),
    };
  }

  async fetch(request) {
    const key = request.headers.get("idempotency-key");
    const { signal } = request;
    this.attempts.push([this.time, key, await request.text(), request.method]);
    const fault = this.faults.shift() ?? { kind: "none", status: 201 };
    await this.wait(signal, (go) => this.at(this.time + (fault.seconds ?? 0), go));
    if (!this.connected && !this.isHere) throw new TypeError("Failed to fetch");
    if (fault.processed || ["none", "truncate"].includes(fault.kind)) this.effects[key] = 1;
    const headers = { "content-type": "application/json", ...fault.headers };
    for (const name in headers) headers[name] = headers[name].replace("$key", key);
    const body = fault.base64 !== undefined ? Buffer.from(fault.base64, "base64") : fault.body;
    const text = fault.json ? JSON.stringify(fault.json) : body;
    switch (fault.kind) {
      case "drop":
        throw new TypeError("Failed to fetch");
      case "truncate":
        return new Response(broken(), { status: 201, headers });
      default:
        return answered(text === undefined ? '{"done": true}' : text, { ...fault, headers });
    }
  }

  /** Let it run to its end; whenever all wait, the next timer rings. */
  async run(work) {
    let over = false;
    const real = performance.now();
    const ended = work.finally(() => (over = true));
    ended.catch(() => undefined);
    while (!over) {
      for (let turn = 0; turn < 4; turn += 1) await new Promise((go) => setImmediate(go));
      if (over) break;
      if (!this.timers.length) {
        // What reads a large body takes real time.
        if (performance.now() - real > 10_000) throw new Error("everybody waits, and nobody for time");
        continue;
      }
      this.timers.sort((one, other) => one.time - other.time);
      const next = this.timers.shift();
      this.time = Math.max(this.time, next.time);
      next.go();
    }
    return ended;
  }
}

function answered(text, { status, headers, redirected = false }) {
  return Object.defineProperty(new Response(text, { status, headers }), "redirected", { value: redirected });
}

function broken() {
  return new ReadableStream({
    start(controller) {
      controller.enqueue(encoder.encode('{"done":'));
      controller.error(new TypeError("network error"));
    },
  });
}

/** A shelf whose question of this number, counted from 1, is never answered. */
function stuckOnce(shelf, number) {
  let asked = 0;
  const ask = (name) => (...said) => {
    asked += 1;
    return asked === number ? new Promise(() => undefined) : shelf[name](...said);
  };
  return { update: ask("update"), all: ask("all") };
}

/** What came of one request, as plain data. */
async function ending(work, bytes = false) {
  try {
    const answer = await work();
    const { status } = answer;
    const headers = Object.fromEntries(answer.headers);
    const body = Buffer.from(await answer.arrayBuffer()).toString(bytes ? "base64" : "utf8");
    return { status, headers, body, ...oncekey.outcomeOf(answer) };
  } catch (error) {
    const { name, message, kind, key, attempts, fields, sent } = error;
    return { error: name, message, kind, key, attempts, fields, sent, shown: Object.keys(error) };
  }
}

/** A body that is none in JSON. */
function bodyOf({ form, stream }) {
  if (stream) return { body: new Blob([stream]).stream(), duplex: "half" };
  if (!form) return {};
  const body = new FormData();
  for (const [name, value] of form) {
    if (typeof value === "string") body.append(name, value);
    else body.append(name, new File([value.text], value.name));
  }
  return { body };
}

/** What a page does beside sending requests. */
const deeds = {
  beginning: (client, name) => client.key(name, { note: "begun" }),
  beginningAnew: (client, name) => client.begin(name),
  settling: (client, said) => client.settle(...said),
  signingOut: (client, more) => client.signOut(more),
  listing: (client) => client.unsettled(),
};

const commands = {
  judge: (cases) =>
    cases.map(([profile, status, headers, body, wall]) => {
      const response = { status, headers: new Headers(headers) };
      return oncekey.judge({ response, body: encoder.encode(body) }, profile, wall);
    }),
  retryAfter: (cases) => cases.map(([value, wall]) => oncekey.retryAfter(value, wall)),
  sha256: (texts) => texts.map((text) => oncekey.sha256(text)),
  uuid7: (cases) => cases.map(([wall, hex]) => oncekey.uuid7(wall, Buffer.from(hex, "hex"))),

  /** One client in one world; `requests` follow each other, each after `restS` of doing nothing. */
  async deliver({ requests, options = {}, abortAt, abortWhen, stuck, bytes, ...script }) {
    const world = new World(script);
    const events = [];
    const warnings = [];
    console.warn = (text) => warnings.push(text);
    const stop = new AbortController();
    const shelf = stuck ? stuckOnce(world.shelf, stuck) : world.shelf;
    const clientOf = (account) =>
      new oncekey.Client({
        ...options,
        ...(account && { account }),
        shelf,
        world: world.given(),
        onAttempt(event) {
          events.push(event);
          if (event.what === abortWhen) stop.abort();
        },
      });
    const client = clientOf(script.account);
    const clients = { [script.account]: client };
    if (abortAt !== undefined) world.at(abortAt, () => stop.abort());
    const { beginAnewAt, signOutAt } = script;
    if (beginAnewAt !== undefined) world.at(beginAnewAt, () => client.begin(requests[0].intent));
    if (signOutAt !== undefined) world.at(signOutAt, () => client.signOut());
    const endings = [];
    const { sleep } = world.given();
    for (const { together, restS = 0, url = "https://api.test/orders", account, ...init } of requests) {
      world.wallAt += restS;
      if (together) {
        const sent = async (each, index) => {
          await sleep(index); // a second apart
          return ending(() => client.fetch(url, { method: "POST", ...each }));
        };
        endings.push(await world.run(Promise.all(together.map(sent))));
        continue;
      }
      const one = account === undefined ? client : (clients[account] ??= clientOf(account));
      const deed = Object.keys(init).find((name) => name in deeds);
      if (deed) {
        endings.push(await deeds[deed](one, init[deed]).catch(({ kind, message }) => ({ kind, message })));
        continue;
      }
      const stopped = init.aborted ? AbortSignal.abort() : undefined;
      const signal = abortAt ?? abortWhen ? stop.signal : stopped;
      const work = () => one.fetch(url, { method: "POST", signal, ...init, ...bodyOf(init) });
      endings.push(await world.run(ending(work, bytes)));
    }
    const unsettled = await client.unsettled();
    const all = await world.shelf.all("oncekey/intent");
    const { attempts, effects, time } = world;
    const stored = all.map(({ name }) => name);
    const said = { endings, attempts, effects, events, unsettled, time, warnings };
    return { ...said, stored, shelf: JSON.stringify(all) };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, argument] = JSON.parse(line);
  try {
    console.log(JSON.stringify({ ok: await commands[name](argument) }));
  } catch (error) {
    console.log(JSON.stringify({ failed: error.stack }));
  }
}
