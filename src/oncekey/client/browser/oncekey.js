/**
 * oncekey for browsers: a `fetch` whose requests may be sent again, and happen once.
 *
 *     import { Client, outcomeOf } from "./oncekey.js";
 *
 *     const api = new Client();
 *     const answer = await api.fetch("/orders", {
 *       method: "POST",
 *       body: JSON.stringify({ sku: "mug" }),
 *       intent: "cart-7/order",
 *     });
 *     outcomeOf(answer).replayed;
 *
 * One key per intent. It is kept where a reload finds it before the first byte leaves, every retry and
 * every tab sends the same one, and it is dropped when the answer is final. The rules of retrying are
 * those of `oncekey.client` in Python, and one test holds both to them.
 *
 * No dependencies, no build step. Time, chance and the network are given to it (`world`), so that a
 * test can drive it through hours in a moment.
 *
 * @module oncekey
 */

// ------------------------------------------------------------------------------------ what it is told

/**
 * How long one request is tried.
 *
 * @typedef {object} Retries
 * @property {number} attemptsMax
 * @property {number} budgetS For all attempts, the pauses between them, and being offline. No attempt
 *   begins after it, and one under way is given no more time than is left.
 * @property {number} attemptS What one attempt may take: `fetch` itself would wait for ever.
 * @property {number} backoffS The bound of the first pause; it doubles up to `backoffSMax`.
 * @property {number} backoffSMax
 */

/** @type {Readonly<Retries>} */
export const RETRIES = Object.freeze({
  attemptsMax: 8,
  budgetS: 90,
  attemptS: 30,
  backoffS: 0.5,
  backoffSMax: 20,
});

/**
 * How many retries one host gets from this page: one sick server, many requests, no storm.
 *
 * @typedef {object} RetryBudget
 * @property {number} tokensMax How many retries may follow each other at once.
 * @property {number} tokensPerRequest
 * @property {number} tokensPerS
 */

/** @type {Readonly<RetryBudget>} */
export const RETRY_BUDGET = Object.freeze({ tokensMax: 20, tokensPerRequest: 0.2, tokensPerS: 0.5 });

/**
 * @typedef {"oncekey" | "stripe"} Profile
 *
 * @typedef {object} Options
 * @property {Profile} [profile] How the server words its refusals.
 * @property {string} [header] Where the key travels: `Idempotency-Key`.
 * @property {Partial<Retries>} [retries]
 * @property {Partial<RetryBudget>} [budget]
 * @property {number} [retentionS] How long the server remembers keys, until it says so itself.
 * @property {number} [answerBytesMax] Longer answers are handed over unread.
 * @property {(event: Attempted) => void} [onAttempt] Called before and after every attempt.
 * @property {Shelf} [shelf] Where intents are kept.
 * @property {number} [shelfS] How long it may take to answer.
 * @property {Partial<World>} [world]
 */

/**
 * @typedef {object} Ours
 * @property {string} [intent] What this request is for, as in "cart-7/order". Its key is kept under this
 *   name until the answer is final.
 * @property {string} [note] Kept beside the key, for whoever resumes it after a reload. No secrets.
 * @property {string} [key] A key of the caller's own. It is not kept.
 * @property {boolean} [settle] False: keep the key until `client.settle(intent)`.
 *
 * @typedef {RequestInit & Ours} Init
 */

// ------------------------------------------------------------------------------------ what it tells

/**
 * What there is to know about a delivered request, beside its answer.
 *
 * @typedef {object} Outcome
 * @property {string} key
 * @property {number} attempts
 * @property {boolean} replayed The answer is a kept one: an earlier attempt had arrived after all.
 * @property {string | null} expires Until when the server remembers the key, as it says.
 * @property {string | null} gaveUp Why there was no further attempt, where one would have been in order.
 * @property {boolean} settled Its intent is done with: the next one may have a new key.
 */

/**
 * @typedef {object} Attempted
 * @property {"offline" | "sending" | "answered"} what
 * @property {string} operation The method and the host: paths and queries may name people.
 * @property {string | undefined} intent
 * @property {string} key
 * @property {number} attempt Counted from 1.
 * @property {number} [status] Absent where no whole answer came.
 * @property {string} [error] The kind of network error.
 * @property {number} [seconds]
 * @property {boolean} [replayed]
 * @property {boolean} [mismatch]
 * @property {number | null} [retryInS] Null where this was the last attempt.
 * @property {string | null} [gaveUp]
 */

/**
 * Something that was begun and is not settled.
 *
 * @typedef {object} Intent
 * @property {string} name
 * @property {string} key
 * @property {number} begun Seconds since 1970.
 * @property {number} until How long its key may be sent.
 * @property {string} origin
 * @property {string} note
 */

/** @type {WeakMap<Response, Outcome>} */
const outcomes = new WeakMap();

/**
 * What is known of an answer that a `Client` gave.
 *
 * @param {Response} answer
 * @returns {Outcome | undefined}
 */
export function outcomeOf(answer) {
  return outcomes.get(answer);
}

/** All that can go wrong here and is not `fetch`'s own; `kind` is the stable name. */
export class OncekeyError extends Error {
  /**
   * @param {"mismatch" | "too-old" | "no-answer" | "no-storage"} kind
   * @param {string} message
   * @param {{ cause?: unknown, key?: string, attempts?: number, fields?: string[] }} [more]
   */
  constructor(kind, message, { cause, key, attempts = 0, fields = [] } = {}) {
    super(message, { cause });
    this.name = "OncekeyError";
    this.kind = kind;
    this.key = key;
    this.attempts = attempts;
    this.fields = fields;
  }
}

// ------------------------------------------------------------------------------------ the client

const METHODS = new Set(["POST", "PUT", "PATCH", "DELETE"]);
const KEY = /^[\x21-\x7e]{1,255}$/;
/** This machine itself, which needs no network to be reached. */
const HERE = /^(?:(?:.+\.)?localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?$/;
const OVER = "the time for all attempts is over";
const FORGOTTEN = "the server has forgotten its key by now: a retry could do it twice";

/**
 * @typedef {object} Call
 * @property {string} operation
 * @property {string} host
 * @property {string} key
 * @property {number} until When the server forgets the key.
 * @property {string | undefined} intent
 * @property {(signal: AbortSignal) => Request} request A fresh copy: a request is sent only once.
 * @property {string | null} once Why it must not be sent twice.
 *
 * @typedef {object} Ended
 * @property {Answer} answer
 * @property {number} attempts
 * @property {Verdict} verdict
 * @property {string | null} gaveUp
 */

/** Sends requests under one set of rules. One per page is enough. */
export class Client {
  #header;
  #profile;
  #retries;
  #answerBytesMax;
  #onAttempt;
  #world;
  #buckets;
  #reuse = new Reuse();
  #intents;

  /** @param {Options} [options] */
  constructor(options = {}) {
    this.#world = { ...browser, ...options.world };
    this.#header = options.header ?? "Idempotency-Key";
    this.#profile = options.profile ?? "oncekey";
    this.#retries = { ...RETRIES, ...options.retries };
    this.#answerBytesMax = options.answerBytesMax ?? 8 * 1024 * 1024;
    this.#onAttempt = options.onAttempt;
    this.#buckets = new Buckets({ ...RETRY_BUDGET, ...options.budget });
    const { shelf, shelfS = 10, retentionS = 24 * 3600 } = options;
    this.#intents = new Intents(shelf, shelfS, retentionS, this.#world);
    for (const [name, value] of Object.entries({ shelfS, retentionS, ...this.#retries })) {
      if (typeof value === "number" && value > 0) continue;
      throw new TypeError(`${name} is ${JSON.stringify(value)}: give a number, more than 0`);
    }
  }

  /**
   * As the browser's own `fetch`, for requests that may be sent again.
   *
   * The answer is whole when it is given. What changes nothing is sent as it is.
   *
   * Throws an `OncekeyError`: "mismatch" where the key belongs to another request, "too-old" where the
   * server has forgotten it, "no-answer" where the attempts are used up without one, "no-storage"
   * where the key cannot be kept (nothing was sent). Throws the signal's reason when aborted.
   *
   * @param {RequestInfo | URL} input
   * @param {Init} [init]
   * @returns {Promise<Response>}
   */
  async fetch(input, { intent, note = "", key, settle = true, ...init } = {}) {
    const signal = init.signal ?? (input instanceof Request ? input.signal : undefined);
    const request = new Request(input, { ...init, signal: null });
    if (!METHODS.has(request.method)) return this.#world.fetch(new Request(request, { signal }));
    const given = request.headers.get(this.#header) ?? undefined;
    if ([intent, key, given].filter((each) => each !== undefined).length > 1) {
      throw new TypeError("give a request its key or its intent, not both");
    }
    if (request.mode === "no-cors") {
      throw new TypeError("mode no-cors sends no key and shows no answer: use cors");
    }
    signal?.throwIfAborted();
    const origin = new URL(request.url).origin;
    const brought = key ?? given;
    const mine = brought ?? newKey(this.#world);
    if (!KEY.test(mine)) throw new TypeError("a key has 1 to 255 visible ASCII characters");
    const begun = await this.#intents.begin(intent, mine, origin, note);
    const call = await this.#prepared(request, init.body, begun, intent);
    const isNew = brought === undefined && begun.key === mine;
    const ended = await this.#deliver(call, signal, isNew);
    if (intent !== undefined) {
      await anyway(() => this.#intents.learn(origin, ended.answer));
      if (settle && ended.verdict.settled) await anyway(() => this.settle(intent, begun.key));
    }
    return this.#given(call, ended);
  }

  /**
   * The key of an intent, written down: a new one, or the one that it has. For those who have to do
   * something between that and sending it, as `key`, and settle it themselves.
   *
   * @param {string} intent
   * @param {{ note?: string, origin?: string }} [more] `origin`: where it goes.
   * @returns {Promise<string>}
   */
  async key(intent, { note = "", origin = globalThis.location?.origin ?? "" } = {}) {
    return (await this.#intents.begin(intent, newKey(this.#world), origin, note)).key;
  }

  /**
   * What was begun, here or in another tab or before a reload, and has no final answer yet; the oldest
   * first. Send it again under its name.
   *
   * @returns {Promise<Intent[]>}
   */
  unsettled() {
    return this.#intents.list();
  }

  /**
   * This intent is done, or given up: the next of this name is a new one, with a new key.
   *
   * @param {string} intent
   * @param {string} [key] Only if it still has this key.
   */
  async settle(intent, key) {
    await this.#intents.settle(intent, key);
  }

  // ---------------------------------------------------------------------------------- parts

  /**
   * @param {Request} request
   * @param {unknown} body
   * @param {Intent} begun
   * @param {string | undefined} intent
   * @returns {Promise<Call>}
   */
  async #prepared(request, body, { key, until }, intent) {
    const headers = new Headers(request.headers);
    headers.set(this.#header, key);
    const host = new URL(request.url).host;
    const operation = `${request.method} ${host}`;
    const streamed = typeof ReadableStream !== "undefined" && body instanceof ReadableStream;
    if (streamed) {
      const once = "its body is a stream, which cannot be sent twice";
      const copy = (/** @type {AbortSignal} */ signal) => new Request(request, { headers, signal });
      return { operation, host, key, until, intent, once, request: copy };
    }
    // A blob can be sent often, is the same bytes each time (a form's boundary too), and a large one
    // need not be in memory.
    const bytes = await request.blob();
    await this.#compare(request, bytes, key, operation);
    const copy = (/** @type {AbortSignal} */ signal) =>
      new Request(request, { headers, signal, body: bytes });
    return { operation, host, key, until, intent, once: null, request: copy };
  }

  /**
   * Warn of a key that was sent before with another request: it is the caller's mistake, and a server
   * that does not compare would hide it.
   *
   * @param {Request} request
   * @param {Blob} body
   * @param {string} key
   * @param {string} operation
   */
  async #compare(request, body, key, operation) {
    const { origin } = new URL(request.url);
    if (!this.#reuse.differs(`${origin} ${key}`, await printOf(request, body))) return;
    console.warn(
      `oncekey: ${operation}: this key was sent before with another request. A server refuses that, ` +
        "or answers with the outcome of the other one: use one key, or one name, per intent.",
    );
  }

  /**
   * Send until the answer is final, or no further attempt is allowed.
   *
   * @param {Call} call
   * @param {AbortSignal | null | undefined} signal
   * @param {boolean} isNew Nothing was sent under its key before.
   * @returns {Promise<Ended>}
   */
  async #deliver(call, signal, isNew) {
    const deadline = this.#world.now() + this.#retries.budgetS;
    this.#buckets.earn(call.host, this.#world.now());
    /** @type {Ended} */
    let ended = { answer: { error: new Error(OFFLINE) }, attempts: 0, verdict: AGAIN, gaveUp: OVER };
    for (let attempt = 1; ; attempt += 1) {
      const isHere = HERE.test(call.host) && !(attempt > 1 && "error" in ended.answer);
      if (!isHere && !(await this.#online(call, attempt, deadline, signal))) {
        return { ...ended, gaveUp: `${OVER}, and this device is offline` };
      }
      const sent = this.#world.now();
      if (sent >= deadline) return { ...ended, gaveUp: OVER };
      // Clocks stand still while a computer sleeps; its server's do not.
      if (this.#world.wall() >= call.until) return { ...ended, gaveUp: FORGOTTEN };
      this.#tell(call, { what: "sending", attempt });
      signal?.throwIfAborted(); // whoever was told may have said no
      const answer = await this.#attempt(call, deadline - sent, signal);
      signal?.throwIfAborted();
      const now = this.#world.now();
      const first = isNew && attempt === 1;
      const verdict = judge(answer, this.#profile, this.#world.wall(), first);
      const after = this.#after(call, attempt, verdict, now, deadline);
      const gaveUp = typeof after === "string" ? after : null;
      const retryInS = typeof after === "number" ? after : null;
      ended = { answer, attempts: attempt, verdict: gaveUp ? AGAIN : verdict, gaveUp };
      this.#tell(call, { ...told(ended), what: "answered", seconds: now - sent, retryInS });
      if (retryInS === null) return ended;
      await this.#world.sleep(retryInS, signal);
    }
  }

  /**
   * One attempt: sent, and read to its end, so that an answer that breaks off is none.
   *
   * @param {Call} call
   * @param {number} leftS
   * @param {AbortSignal | null | undefined} signal
   * @returns {Promise<Answer>}
   */
  async #attempt(call, leftS, signal) {
    const cut = new AbortController();
    const stop = () => cut.abort(signal?.reason);
    signal?.addEventListener("abort", stop, { once: true });
    const done = new AbortController();
    const late = new DOMException("no whole answer in time", "TimeoutError");
    const timesUp = () => cut.abort(late);
    const slept = this.#world.sleep(Math.min(leftS, this.#retries.attemptS), done.signal);
    slept.then(timesUp, () => undefined);
    try {
      const response = await this.#world.fetch(call.request(cut.signal));
      const body = await whole(response, this.#answerBytesMax);
      // What is handed over unread can still be aborted.
      if (body !== null) signal?.removeEventListener("abort", stop);
      return { response, body };
    } catch (error) {
      signal?.removeEventListener("abort", stop);
      return { error: cut.signal.aborted ? cut.signal.reason : error };
    } finally {
      done.abort();
    }
  }

  /**
   * How long to wait for the next attempt, or why there is none; null if there need not be one.
   *
   * @param {Call} call
   * @param {number} attempt
   * @param {Verdict} verdict
   * @param {number} now
   * @param {number} deadline
   * @returns {number | string | null}
   */
  #after(call, attempt, verdict, now, deadline) {
    if (!verdict.again) return null;
    if (call.once) return call.once;
    if (attempt >= this.#retries.attemptsMax) return `${attempt} attempts were made`;
    const leftS = deadline - now;
    const askedS = verdict.retryAfterS ?? 0;
    if (leftS <= 0) return OVER;
    // Coming back earlier than told would be rude, and most likely in vain.
    if (askedS >= leftS) {
      return `the server asks to wait ${askedS} s, longer than is left for all attempts`;
    }
    const { backoffS, backoffSMax } = this.#retries;
    const waitS = askedS + fullJitter(attempt - 1, backoffS, backoffSMax, this.#world.chance());
    if (waitS >= leftS) return OVER;
    if (!this.#buckets.spend(call.host, now)) {
      return "the retry budget of this host is spent: too many requests to it fail";
    }
    return waitS;
  }

  /**
   * Wait until there is a network, for as long as there is time: an attempt that cannot leave is none.
   *
   * @param {Call} call
   * @param {number} attempt
   * @param {number} deadline
   * @param {AbortSignal | null | undefined} signal
   * @returns {Promise<boolean>}
   */
  async #online(call, attempt, deadline, signal) {
    if (this.#world.online()) return true;
    this.#tell(call, { what: "offline", attempt });
    const done = new AbortController();
    const stop = () => done.abort(signal?.reason);
    signal?.addEventListener("abort", stop, { once: true });
    const leftS = Math.max(0, deadline - this.#world.now());
    try {
      const over = this.#world.sleep(leftS, done.signal).then(() => false);
      return await Promise.race([this.#world.back(done.signal).then(() => true), over]);
    } finally {
      signal?.removeEventListener("abort", stop);
      done.abort();
    }
  }

  /** @param {Call} call @param {Ended} ended @returns {Response} */
  #given(call, { answer, attempts, verdict, gaveUp }) {
    const { key } = call;
    if (verdict.mismatch) {
      const { detail, fields } = verdict.mismatch;
      throw new OncekeyError("mismatch", detail, { key, attempts, fields });
    }
    if ("error" in answer) {
      const times = attempts === 1 ? "once" : `${attempts} times`;
      const sent = `Sent ${times}, and nobody knows whether it was carried out. Not again`;
      const named = call.intent === undefined ? `, ${key}.` : `: that of the intent ${call.intent}.`;
      const move =
        gaveUp === FORGOTTEN
          ? "Find out there whether it was done."
          : `To retry, send the same request with the same key${named}`;
      const message = `${attempts ? sent : "Not sent"}, because ${gaveUp}. ${move}`;
      throw new OncekeyError("no-answer", message, { cause: answer.error, key, attempts });
    }
    const { headers } = answer.response;
    const expires = headers.get("idempotency-expires");
    const { settled } = verdict;
    const said = { replayed: replayed(headers), expires };
    outcomes.set(answer.response, { key, attempts, ...said, gaveUp, settled });
    return answer.response;
  }

  /** @param {Call} call @param {Pick<Attempted, "what" | "attempt"> & Partial<Attempted>} event */
  #tell({ operation, intent, key }, event) {
    try {
      this.#onAttempt?.({ operation, intent, key, ...event });
    } catch (error) {
      console.error("oncekey: onAttempt failed; the request goes on:", error);
    }
  }
}

/** @param {Ended} ended @returns {Omit<Attempted, "what" | "operation" | "intent" | "key">} */
function told({ answer, attempts, verdict, gaveUp }) {
  const about =
    "error" in answer
      ? { error: answer.error instanceof Error ? answer.error.name : "Error", replayed: false }
      : { status: answer.response.status, replayed: replayed(answer.response.headers) };
  return { attempt: attempts, ...about, mismatch: verdict.mismatch !== undefined, gaveUp };
}

/**
 * Read an answer to its end, and leave it readable: null if it is too long or has no end.
 *
 * @param {Response} response
 * @param {number} bytesMax
 * @returns {Promise<Uint8Array | null>}
 */
async function whole(response, bytesMax) {
  const type = response.headers.get("content-type") ?? "";
  if (response.body === null || type.startsWith("text/event-stream")) return null;
  const reader = response.clone().body?.getReader();
  /** @type {Uint8Array[]} */
  const parts = [];
  let size = 0;
  for (;;) {
    const read = await reader?.read();
    if (!read || read.done) break;
    parts.push(read.value);
    size += read.value.length;
    if (size > bytesMax) {
      reader?.cancel().catch(() => undefined);
      return null;
    }
  }
  const body = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    body.set(part, at);
    at += part.length;
  }
  return body;
}

// ------------------------------------------------------------------------------------ what answers mean
//
// As in oncekey/client/verdict.py: what may end differently without anybody changing anything is
// retried. A server's own word goes before the status; a kept answer is final whatever its status.

/**
 * @typedef {{ response: Response, body: Uint8Array | null } | { error: unknown }} Answer
 *
 * @typedef {object} Verdict
 * @property {boolean} again The same request with the same key, later.
 * @property {number | null} [retryAfterS]
 * @property {{ detail: string, fields: string[] }} [mismatch] The key belongs to another request.
 * @property {boolean} settled Its intent is done with: a new one may have a new key.
 */

/** @type {Readonly<Verdict>} */
const AGAIN = Object.freeze({ again: true, settled: false });
const OFFLINE = "this device is offline";
const REFUSAL_BYTES_MAX = 65_536;
const PASSING_STATUSES = new Set([408, 425, 429]);
const PASSING = new Set([
  ...["in-flight", "newer-record", "quota-exceeded", "store-unavailable", "unsettled"],
]);
const BEYOND_RETRY = new Set([
  ...["outcome-unknown", "answer-not-kept", "stale-answer", "too-old", "key-expired"],
]);
/** Who asks, and how often, was judged before what is asked: an earlier attempt may have been carried out. */
const NOT_LET_IN = new Set([401, 403, 407, ...PASSING_STATUSES]);
/** Nothing there takes what is asked, as while a release is taken back: the same, where it was sent before. */
const NOT_THERE = new Set([404, 405, 413, 415, 421]);

/**
 * What to do now.
 *
 * @param {Answer} answer
 * @param {Profile} profile
 * @param {number} wall Seconds since 1970.
 * @param {boolean} [first] Nothing was sent under this key before.
 * @returns {Verdict}
 */
export function judge(answer, profile, wall, first = true) {
  if ("error" in answer) return AGAIN;
  const { status, headers } = answer.response;
  if (status < 400) return { again: false, settled: status >= 200 };
  const said = json(answer.body);
  const kind = kindOf(said, status, profile);
  if (kind === "mismatch") return { again: false, settled: false, mismatch: mismatchOf(said) };
  if (replayed(headers) || !passing(status, headers, said, kind, profile)) {
    const passedBy = status >= 500 || (NOT_THERE.has(status) && !first);
    const nobodyKnows = BEYOND_RETRY.has(kind ?? "") || (passedBy && !replayed(headers));
    return { again: false, settled: !NOT_LET_IN.has(status) && !nobodyKnows };
  }
  const asked = headers.get("retry-after");
  return { ...AGAIN, retryAfterS: asked === null ? null : retryAfter(asked, dateOf(headers) ?? wall) };
}

/**
 * What the server's clock says, which may be hours away from ours; null where it is not shown.
 *
 * @param {Headers} headers
 */
function dateOf(headers) {
  return parseDate((headers.get("date") ?? "").trim());
}

/** @param {Headers} headers */
function replayed(headers) {
  return (headers.get("idempotent-replayed") ?? "").trim().toLowerCase() === "true";
}

/**
 * @param {number} status
 * @param {Headers} headers
 * @param {any} said
 * @param {string | undefined} kind
 * @param {Profile} profile
 */
function passing(status, headers, said, kind, profile) {
  for (const name of ["stripe-should-retry", "x-should-retry"]) {
    const word = (headers.get(name) ?? "").trim().toLowerCase();
    if (word === "true" || word === "false") return word === "true";
  }
  if (kind !== undefined && typeof said?.retryable === "boolean") return said.retryable;
  if (PASSING.has(kind ?? "") || status >= 500 || PASSING_STATUSES.has(status)) return true;
  if (headers.get("transient-error") === "true") return true;
  // A 409 that does not say why: Stripe's is a first request in flight. Elsewhere it is more likely
  // the application's own, unless it says when to come back.
  if (status !== 409 || BEYOND_RETRY.has(kind ?? "")) return false;
  return profile === "stripe" || headers.get("retry-after") !== null;
}

const PROBLEM = "urn:oncekey:problem:";
const KINDS = new Set([
  ...["missing-key", "invalid-key", "no-tenant", "malformed-request", "request-too-large"],
  ...["mismatch", "in-flight", "outcome-unknown", "answer-not-kept", "stale-answer", "newer-record"],
  ...["too-old", "key-expired", "quota-exceeded", "store-unavailable", "unsettled", "key-not-found"],
]);
/** @type {Record<string, string>} */
const STRIPE_NAMES = { "in-flight": "idempotency_key_in_use", "key-not-found": "resource_missing" };
const STRIPE_CODES = new Map(
  Array.from(KINDS, (kind) => [STRIPE_NAMES[kind] ?? kind.replaceAll("-", "_"), kind]),
);

/**
 * @param {any} said
 * @param {number} status
 * @param {Profile} profile
 * @returns {string | undefined}
 */
function kindOf(said, status, profile) {
  const type = said?.type;
  if (typeof type === "string" && type.startsWith(PROBLEM)) {
    const name = type.slice(PROBLEM.length);
    return KINDS.has(name) ? name : undefined;
  }
  if (profile !== "stripe") return kindByTheDraft(said, status);
  const kind = STRIPE_CODES.get(said?.error?.code);
  if (kind !== undefined || said?.error?.type !== "idempotency_error") return kind;
  return status === 409 ? "in-flight" : "mismatch";
}

/**
 * The IETF's draft fixes statuses, and no names: what a problem is about is said in words.
 *
 * @param {any} said
 * @param {number} status
 * @returns {string | undefined}
 */
function kindByTheDraft(said, status) {
  if (!`${said?.type} ${said?.title}`.toLowerCase().includes("idempotency")) return undefined;
  return { 409: "in-flight", 422: "mismatch" }[status];
}

/** @param {any} said */
function mismatchOf(said) {
  const words = [said?.detail, said?.message, said?.error?.message];
  const why = words.find((word) => typeof word === "string" && word) ?? "without details.";
  const detail =
    `The server says that this key belongs to another request: ${why} To retry, send the first ` +
    "request unchanged; for another operation, use a new key.";
  return { detail, fields: Array.isArray(said?.fields) ? said.fields.map(String) : [] };
}

/** @param {Uint8Array | null} body @returns {any} */
function json(body) {
  if (body === null || body.length > REFUSAL_BYTES_MAX) return undefined;
  try {
    const said = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body));
    return typeof said === "object" && !Array.isArray(said) ? said : undefined;
  } catch {
    return undefined;
  }
}

// ------------------------------------------------------------------------------------ how long to wait

const RETRY_AFTER_S_MAX = 3600;
// The two obsolete forms of a date, and how they read in the one that is sent.
const OBSOLETE = [
  [/^[A-Z][a-z]{5,8}, (\d\d)-([A-Z][a-z]{2})-([0-6]\d) ([\d:]{8}) GMT$/, "Any, $1 $2 20$3 $4 GMT"],
  [/^[A-Z][a-z]{5,8}, (\d\d)-([A-Z][a-z]{2})-([7-9]\d) ([\d:]{8}) GMT$/, "Any, $1 $2 19$3 $4 GMT"],
  [/^[A-Z][a-z]{2} ([A-Z][a-z]{2})  (\d) ([\d:]{8}) (\d{4})$/, "Any, 0$2 $1 $4 $3 GMT"],
  [/^[A-Z][a-z]{2} ([A-Z][a-z]{2}) (\d\d) ([\d:]{8}) (\d{4})$/, "Any, $2 $1 $4 $3 GMT"],
];
const DATE = /^[A-Z][a-z]{2}, (\d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT)$/;

/**
 * A delay from 0 up to a bound that doubles with every attempt, counted from 0. All of it is random:
 * those who failed together do not come back together.
 *
 * @param {number} attempt
 * @param {number} baseS
 * @param {number} capS
 * @param {number} chance In [0, 1).
 */
export function fullJitter(attempt, baseS, capS, chance) {
  return Math.min(baseS * 2 ** Math.min(attempt, 40), capS) * chance;
}

/**
 * Seconds to wait by a Retry-After header, from 0 to an hour; null if it cannot be read.
 *
 * @param {string} value
 * @param {number} wall Seconds since 1970.
 * @returns {number | null}
 */
export function retryAfter(value, wall) {
  const text = value.replace(/^[ \t]+|[ \t]+$/g, "");
  const waitS = /^\d+(\.\d+)?$/.test(text) ? Number(text) : (parseDate(text) ?? NaN) - wall;
  return Number.isNaN(waitS) ? null : Math.max(0, Math.min(waitS, RETRY_AFTER_S_MAX));
}

/**
 * Seconds since 1970 of an HTTP date; null if it is none.
 *
 * @param {string} text
 * @returns {number | null}
 */
export function parseDate(text) {
  const now = OBSOLETE.reduce((so, [form, sent]) => so.replace(form ?? "", String(sent)), text);
  const date = DATE.exec(now)?.[1];
  if (date === undefined) return null;
  const ms = Date.parse(date);
  // Read back, because the 31st of February is taken for some day in March.
  const same = !Number.isNaN(ms) && new Date(ms).toUTCString().endsWith(`, ${date}`);
  return same ? ms / 1000 : null;
}

/** The tokens of every host that was asked lately (oncekey/client/budget.py). */
class Buckets {
  #budget;
  /** @type {Map<string, { tokens: number, counted: number }>} */
  #left = new Map();

  /** @param {RetryBudget} budget */
  constructor(budget) {
    this.#budget = budget;
  }

  /**
   * A new request goes to this host.
   *
   * @param {string} host
   * @param {number} now
   */
  earn(host, now) {
    this.#put(host, this.#tokens(host, now) + this.#budget.tokensPerRequest, now);
  }

  /**
   * Take the token for one retry; false if there is none.
   *
   * @param {string} host
   * @param {number} now
   */
  spend(host, now) {
    const tokens = this.#tokens(host, now);
    const may = tokens >= 1;
    this.#put(host, may ? tokens - 1 : tokens, now);
    return may;
  }

  /** @param {string} host @param {number} now */
  #tokens(host, now) {
    const { tokens, counted } = this.#left.get(host) ?? {
      tokens: this.#budget.tokensMax,
      counted: now,
    };
    return tokens + Math.max(0, now - counted) * this.#budget.tokensPerS;
  }

  /** @param {string} host @param {number} tokens @param {number} now */
  #put(host, tokens, now) {
    this.#left.delete(host); // to the end: the oldest goes first
    this.#left.set(host, { tokens: Math.min(tokens, this.#budget.tokensMax), counted: now });
    if (this.#left.size > 1024) this.#left.delete(this.#left.keys().next().value ?? "");
  }
}

// ------------------------------------------------------------------------------------ keys and intents

/**
 * RFC 9562, version 7: milliseconds, then chance. Never made from what is sent: two equal orders are
 * two orders.
 *
 * @param {number} wall Seconds since 1970.
 * @param {Uint8Array} random At least 10 bytes.
 */
export function uuid7(wall, random) {
  const ms = Math.floor(wall * 1000).toString(16).padStart(12, "0");
  const rest = Array.from(random.subarray(0, 10), (byte) => byte.toString(16).padStart(2, "0"));
  const digits = ms + rest.join("");
  const variant = "89ab"[((random[2] ?? 0) >> 4) & 3];
  return [
    digits.slice(0, 8),
    digits.slice(8, 12),
    `7${digits.slice(13, 16)}`,
    `${variant}${digits.slice(17, 20)}`,
    digits.slice(20),
  ].join("-");
}

/** @param {World} world */
function newKey(world) {
  return uuid7(world.wall(), world.bytes(10));
}

const KEYS_MAX = 1024;
const PRINT_BYTES_MAX = 1024 * 1024;

/** Which request a key came with, as far back as a bounded memory goes (oncekey/client/reuse.py). */
class Reuse {
  /** @type {Map<string, string>} */
  #seen = new Map();

  /**
   * Whether this key was last seen here with another request.
   *
   * @param {string} name The origin and the key.
   * @param {string} print
   */
  differs(name, print) {
    const before = this.#seen.get(name);
    this.#seen.delete(name); // to the end: the oldest goes first
    this.#seen.set(name, print);
    if (this.#seen.size > KEYS_MAX) this.#seen.delete(this.#seen.keys().next().value ?? "");
    return before !== undefined && before !== print;
  }
}

/**
 * What tells a request from another one: JSON by value, anything else by its bytes. Of what is large,
 * and of forms with files, whose boundary is a new one each time, only the size counts.
 *
 * @param {Request} request
 * @param {Blob} body
 * @returns {Promise<string>}
 */
async function printOf(request, body) {
  const url = new URL(request.url);
  url.hash = "";
  url.searchParams.sort();
  const type = (request.headers.get("content-type") ?? "").split(";", 1)[0]?.trim().toLowerCase() ?? "";
  const bySize = body.size > PRINT_BYTES_MAX || type === "multipart/form-data";
  const said = bySize ? String(body.size) : canonical(await body.text());
  return hashOf(JSON.stringify([request.method, url.href, type, said]));
}

/**
 * FNV-1a, and the length. Not the text itself, which may hold secrets; and no digest of the browser's,
 * which only pages have that came by https. If two are the same by chance, nobody is warned.
 *
 * @param {string} text
 */
function hashOf(text) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  }
  return `${text.length}:${hash >>> 0}`;
}

/** JSON whose names are in order, whoever wrote it; other text as it is. @param {string} text */
function canonical(text) {
  try {
    return JSON.stringify(JSON.parse(text), (_, value) =>
      typeof value === "object" && value !== null && !Array.isArray(value)
        ? Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)))
        : value,
    );
  } catch {
    return text;
  }
}

const INTENT = "oncekey/intent/";
const SERVER = "oncekey/server/";
const NAME_CHARS_MAX = 512;
const NOTE_CHARS_MAX = 16_384;
/** A key that is given out now is used for a while: its retries must arrive in time as well. */
const MARGIN_S_MAX = 120;
const LEARNT_APART = 0.05;

/** Which intents there are, and which keys they have (oncekey/client/journal.py). */
class Intents {
  #given;
  /** @type {Shelf | undefined} */
  #chosen;
  #shelfS;
  #retentionS;
  #world;

  /**
   * @param {Shelf | undefined} shelf
   * @param {number} shelfS
   * @param {number} retentionS
   * @param {World} world
   */
  constructor(shelf, shelfS, retentionS, world) {
    this.#given = shelf;
    this.#shelfS = shelfS;
    this.#retentionS = retentionS;
    this.#world = world;
  }

  get #shelf() {
    return (this.#chosen ??= bounded(this.#given ?? usualShelf(), this.#shelfS, this.#world));
  }

  /**
   * The intent of this name: a new one with this key, written down, or the one that there is.
   *
   * @param {string | undefined} name Undefined: an intent that nobody keeps.
   * @param {string} key
   * @param {string} origin
   * @param {string} note
   * @returns {Promise<Intent>}
   */
  async begin(name, key, origin, note) {
    const wall = this.#world.wall();
    const fresh = { name: name ?? "", key, begun: wall, origin, note };
    if (name === undefined) return { ...fresh, until: wall + this.#retentionS };
    if (!name || name.length > NAME_CHARS_MAX || note.length > NOTE_CHARS_MAX) {
      throw new TypeError(
        `an intent has a name of 1 to ${NAME_CHARS_MAX} characters, and a note of at most ` +
          `${NOTE_CHARS_MAX}`,
      );
    }
    const intent = await kept(async () =>
      this.#dated(await this.#shelf.update(INTENT + name, (it) => (isIntent(it) ? it : fresh))),
    );
    if (wall < intent.until) return intent;
    const hours = ((intent.until - intent.begun) / 3600).toFixed(1);
    throw new OncekeyError(
      "too-old",
      `The intent ${name} was begun over ${hours} hours ago and never settled; its server has ` +
        "forgotten the key by now, so sending it again could do it twice. Find out at the server " +
        "whether it was done, then call settle(intent); a new key begins it anew.",
      { key: intent.key },
    );
  }

  /** @param {string} name @param {string} [key] */
  async settle(name, key) {
    // Another tab may have begun it anew: that one stays.
    const left = (/** @type {any} */ before) =>
      key !== undefined && before?.key !== key ? before : undefined;
    await this.#shelf.update(INTENT + name, left);
  }

  /** @returns {Promise<Intent[]>} */
  async list() {
    const found = await this.#shelf.all(INTENT);
    const intents = await Promise.all(found.filter(isIntent).map((each) => this.#dated(each)));
    return intents.sort((one, other) => one.begun - other.begun);
  }

  /**
   * How long this server remembers keys: it says so with every first answer. Its routes may say different
   * things: the shortest counts.
   *
   * @param {string} origin
   * @param {Answer} answer
   */
  async learn(origin, answer) {
    if ("error" in answer || replayed(answer.response.headers)) return;
    const { headers } = answer.response;
    const until = parseDate((headers.get("idempotency-expires") ?? "").trim());
    const retentionS = until === null ? 0 : until - (dateOf(headers) ?? this.#world.wall());
    if (retentionS <= 0) return;
    const [known] = await this.#shelf.all(`${SERVER}${origin}/`);
    if (known?.retentionS * (1 - LEARNT_APART) <= retentionS) return;
    const shorter = (/** @type {any} */ before) =>
      before?.retentionS < retentionS ? before : { retentionS };
    await this.#shelf.update(`${SERVER}${origin}/`, shorter);
  }

  /** @param {Omit<Intent, "until">} intent @returns {Promise<Intent>} */
  async #dated(intent) {
    const retentionS = await this.#retention(intent.origin);
    const until = intent.begun + retentionS - Math.min(MARGIN_S_MAX, retentionS / 10);
    return { ...intent, until };
  }

  /** @param {string} origin */
  async #retention(origin) {
    const [known] = await this.#shelf.all(`${SERVER}${origin}/`);
    return typeof known?.retentionS === "number" ? known.retentionS : this.#retentionS;
  }
}

/**
 * What is done after the answer came must not hide it: asking again would bring the same.
 *
 * @param {() => Promise<void>} work
 */
async function anyway(work) {
  try {
    await work();
  } catch (error) {
    console.error("oncekey: the answer is there, its intent could not be updated:", error);
  }
}

/** @param {any} value */
function isIntent(value) {
  return typeof value?.key === "string" && typeof value.begun === "number";
}

/**
 * @template T
 * @param {() => Promise<T>} ask
 * @returns {Promise<T>}
 */
async function kept(ask) {
  try {
    return await ask();
  } catch (cause) {
    if (cause instanceof OncekeyError) throw cause;
    const why = cause instanceof Error ? cause.message || cause.name : String(cause);
    throw new OncekeyError(
      "no-storage",
      `The key cannot be kept, so nothing was sent: ${why}. Allow this page to keep data, or pass ` +
        "shelf: memoryShelf() and live with keys that a reload forgets.",
      { cause },
    );
  }
}

// ------------------------------------------------------------------------------------ where they are kept

/**
 * Values by name. All tabs of an origin share one shelf.
 *
 * @typedef {object} Shelf
 * @property {(name: string, change: (before: any) => any) => Promise<any>} update Put what `change` makes
 *   of the value that is there, undefined for none; nobody comes in between. Gives what is there now.
 * @property {(prefix: string) => Promise<any[]>} all The values whose names begin so.
 */

/**
 * IndexedDB; where there is none, localStorage.
 *
 * In this order, because what one tab writes to localStorage another may see only some time later, even
 * if they take turns by a lock: both could make a key for one intent. Transactions of IndexedDB hold.
 *
 * Which one it is must not change from one page load to the next, or there would be two keys again: so
 * it depends on what the browser has, not on whether a write succeeds today.
 *
 * @returns {Shelf}
 */
export function usualShelf() {
  const database = given(() => globalThis.indexedDB);
  if (database) return databaseShelf(database);
  const storage = given(() => globalThis.localStorage);
  if (storage) return storageShelf(storage, globalThis.navigator?.locks);
  throw new Error("this browser has neither IndexedDB nor localStorage for this page");
}

/**
 * What the browser has, if this page may use it: a sandboxed frame may not even ask.
 *
 * @template T
 * @param {() => T} ask
 * @returns {T | undefined}
 */
function given(ask) {
  try {
    return ask();
  } catch {
    return undefined;
  }
}

/**
 * A shelf that fails where it would never answer: a browser whose storage is stuck tells nobody. Another
 * shelf is not taken instead, for the reason above. What is written late all the same is found by the
 * next who looks.
 *
 * @param {Shelf} shelf
 * @param {number} seconds
 * @param {World} world
 * @returns {Shelf}
 */
function bounded(shelf, seconds, world) {
  /**
   * @template T
   * @param {Promise<T>} asked
   * @returns {Promise<T>}
   */
  const answered = async (asked) => {
    const done = new AbortController();
    const late = world.sleep(seconds, done.signal).then(() => {
      throw new Error(`the place where keys are kept gave no answer within ${seconds} s`);
    });
    try {
      return await Promise.race([asked, late]);
    } finally {
      done.abort();
    }
  };
  return {
    update: (name, change) => answered(shelf.update(name, change)),
    all: (prefix) => answered(shelf.all(prefix)),
  };
}

/**
 * Good for one tab. Two that begin one intent in the same moment may make two keys.
 *
 * @param {Storage} storage
 * @param {LockManager} [locks]
 * @returns {Shelf}
 */
export function storageShelf(storage, locks) {
  const read = (/** @type {string} */ name) => {
    try {
      return JSON.parse(storage.getItem(name) ?? "null") ?? undefined;
    } catch {
      return undefined;
    }
  };
  return {
    async update(name, change) {
      const work = () => {
        const after = change(read(name));
        if (after === undefined) storage.removeItem(name);
        else storage.setItem(name, JSON.stringify(after));
        return after;
      };
      return locks ? locks.request(name, work) : work();
    },
    all: async (prefix) =>
      Array.from({ length: storage.length }, (_, index) => storage.key(index) ?? "")
        .filter((name) => name.startsWith(prefix))
        .map(read),
  };
}

/**
 * Written to the disk before it is given out (`durability: "strict"`), and shared by all tabs.
 *
 * @param {IDBFactory} factory
 * @returns {Shelf}
 */
export function databaseShelf(factory) {
  /** @type {Promise<IDBDatabase> | undefined} */
  let opening;
  const forget = () => {
    opening = undefined;
  };
  const open = () =>
    (opening ??= new Promise((resolve, reject) => {
      const request = factory.open("oncekey", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("values");
      request.onsuccess = () => {
        request.result.onclose = forget; // as when somebody clears what the site has kept
        resolve(request.result);
      };
      request.onerror = () => {
        forget();
        reject(request.error);
      };
    }));

  /**
   * @template T
   * @param {IDBTransactionMode} mode
   * @param {(values: IDBObjectStore, done: (result: T) => void) => void} work
   * @returns {Promise<T>}
   */
  const within = async (mode, work) => {
    const database = await open();
    return new Promise((resolve, reject) => {
      const transaction = database.transaction("values", mode, { durability: "strict" });
      /** @type {T} */
      let result;
      transaction.oncomplete = () => resolve(result);
      transaction.onabort = () => reject(transaction.error);
      work(transaction.objectStore("values"), (made) => {
        result = made;
      });
    });
  };
  return {
    update: (name, change) =>
      within("readwrite", (values, done) => {
        const found = values.get(name);
        found.onsuccess = () => {
          const after = change(found.result);
          if (after === undefined) values.delete(name);
          else values.put(after, name);
          done(after);
        };
      }),
    all: (prefix) =>
      within("readonly", (values, done) => {
        const found = values.getAll(IDBKeyRange.bound(prefix, `${prefix}\uffff`));
        found.onsuccess = () => done(found.result);
      }),
  };
}

/**
 * For tests, and for pages that may keep nothing: a reload forgets it.
 *
 * @returns {Shelf}
 */
export function memoryShelf() {
  /** @type {Map<string, any>} */
  const values = new Map();
  return {
    update: async (name, change) => {
      const after = change(values.get(name));
      if (after === undefined) values.delete(name);
      else values.set(name, after);
      return after;
    },
    all: async (prefix) =>
      [...values].filter(([name]) => name.startsWith(prefix)).map(([, value]) => value),
  };
}

// ------------------------------------------------------------------------------------ the browser

/**
 * All that is not ours: time, chance, the network.
 *
 * @typedef {object} World
 * @property {(request: Request) => Promise<Response>} fetch
 * @property {() => number} now Seconds that only ever grow.
 * @property {() => number} wall Seconds since 1970.
 * @property {(seconds: number, signal?: AbortSignal | null) => Promise<void>} sleep Throws when aborted.
 * @property {() => number} chance In [0, 1).
 * @property {(count: number) => Uint8Array} bytes
 * @property {() => boolean} online
 * @property {(signal: AbortSignal) => Promise<void>} back When there is a network again.
 */

/** A timer that is set for longer, or for ever, goes off at once. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/** @type {Readonly<World>} */
const browser = Object.freeze({
  fetch: (request) => globalThis.fetch(request),
  now: () => performance.now() / 1000,
  wall: () => Date.now() / 1000,
  sleep: (seconds, signal) =>
    until(signal, (resolve) => {
      const timer = setTimeout(resolve, Math.min(seconds * 1000, TIMER_MS_MAX));
      return () => clearTimeout(timer);
    }),
  chance: Math.random,
  bytes: (count) => crypto.getRandomValues(new Uint8Array(count)),
  online: () => globalThis.navigator?.onLine !== false,
  back: (signal) =>
    until(signal, (resolve) => {
      globalThis.addEventListener("online", resolve);
      return () => globalThis.removeEventListener("online", resolve);
    }),
});

/**
 * @param {AbortSignal | null | undefined} signal
 * @param {(resolve: () => void) => () => void} begin Gives how to end it.
 * @returns {Promise<void>}
 */
function until(signal, begin) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      end();
      reject(signal?.reason);
    };
    const end = begin(() => {
      end();
      signal?.removeEventListener("abort", stop);
      resolve();
    });
    signal?.addEventListener("abort", stop, { once: true });
  });
}
