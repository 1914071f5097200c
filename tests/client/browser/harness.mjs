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

  constructor({ faults = [], chances = [0.5], offline = [], isHere = false }) {
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
    switch (fault.kind) {
      case "drop":
        throw new TypeError("Failed to fetch");
      case "truncate":
        return new Response(broken(), { status: 201, headers });
      default:
        return new Response(fault.body ?? '{"done": true}', { status: fault.status, headers });
    }
  }

  /** Let it run to its end; whenever all wait, the next timer rings. */
  async run(work) {
    let over = false;
    const ended = work.finally(() => (over = true));
    ended.catch(() => undefined);
    while (!over) {
      for (let turn = 0; turn < 4; turn += 1) await new Promise((go) => setImmediate(go));
      if (over) break;
      if (!this.timers.length) throw new Error("everybody waits, and nobody for time");
      this.timers.sort((one, other) => one.time - other.time);
      const next = this.timers.shift();
      this.time = Math.max(this.time, next.time);
      next.go();
    }
    return ended;
  }
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
async function ending(work) {
  try {
    const answer = await work();
    return { status: answer.status, body: await answer.text(), ...oncekey.outcomeOf(answer) };
  } catch (error) {
    const { name, message, kind, key, attempts, fields } = error;
    return { error: name, message, kind, key, attempts, fields };
  }
}

const commands = {
  judge: (cases) =>
    cases.map(([profile, status, headers, body, wall]) => {
      const response = { status, headers: new Headers(headers) };
      return oncekey.judge({ response, body: encoder.encode(body) }, profile, wall);
    }),
  retryAfter: (cases) => cases.map(([value, wall]) => oncekey.retryAfter(value, wall)),
  uuid7: (cases) => cases.map(([wall, hex]) => oncekey.uuid7(wall, Buffer.from(hex, "hex"))),

  /** One client in one world; `requests` follow each other, each after `restS` of doing nothing. */
  async deliver({ requests, options = {}, abortAt, abortWhen, stuck, ...script }) {
    const world = new World(script);
    const events = [];
    const warnings = [];
    console.warn = (text) => warnings.push(text);
    const stop = new AbortController();
    const client = new oncekey.Client({
      ...options,
      shelf: stuck ? stuckOnce(world.shelf, stuck) : world.shelf,
      world: world.given(),
      onAttempt(event) {
        events.push(event);
        if (event.what === abortWhen) stop.abort();
      },
    });
    if (abortAt !== undefined) world.at(abortAt, () => stop.abort());
    const endings = [];
    for (const { restS = 0, url = "https://api.test/orders", ...init } of requests) {
      world.wallAt += restS;
      const signal = abortAt ?? abortWhen ? stop.signal : undefined;
      if (init.beginning) {
        endings.push(await client.key(init.beginning, { note: "begun" }));
        continue;
      }
      if (init.settling) {
        endings.push(await client.settle(...init.settling));
        continue;
      }
      const work = () => client.fetch(url, { method: "POST", signal, ...init });
      endings.push(await world.run(ending(work)));
    }
    const unsettled = await client.unsettled();
    const { attempts, effects, time } = world;
    return { endings, attempts, effects, events, unsettled, time, warnings };
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
