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
 * One key per intent. It is kept where a reload finds it before the first byte leaves, and every retry
 * and every tab sends the same one. An intent that was answered 2xx stays settled under its name: the
 * same request gets that answer again, and nothing is sent, until `begin` begins it anew or the server
 * forgets the key. The rules of retrying are those of `oncekey.client` in Python, and one test holds
 * both to them.
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
 * @property {string} [account] Whose intents these are. Those of others are neither seen nor touched.
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
 *   name, and so is the answer that ends it.
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
 * @property {boolean} settled Its intent is done with.
 * @property {boolean} remembered Nothing was sent: the answer is the one that settled this intent.
 * @property {boolean} withoutBody It is remembered without its body, which was too long to be kept.
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

/**
 * All that can go wrong here and is not `fetch`'s own; `kind` is the stable name. `sent` is false if
 * nothing left this page in this call. The message holds a short hash of the key; `key` is the key.
 */
export class OncekeyError extends Error {
  /**
   * @param {"mismatch" | "settled" | "too-old" | "no-answer" | "no-storage"} kind
   * @param {string} message
   * @param {{ cause?: unknown, key?: string, attempts?: number, fields?: string[] }} [more]
   */
  constructor(kind, message, { cause, key, attempts = 0, fields = [] } = {}) {
    super(message, { cause });
    this.name = "OncekeyError";
    this.kind = kind;
    this.attempts = attempts;
    this.sent = attempts > 0;
    this.fields = fields;
    /** @type {string | undefined} */
    this.key = key;
    // Whoever reports errors lists their own properties.
    Object.defineProperty(this, "key", { enumerable: false });
  }
}

// ------------------------------------------------------------------------------------ the client

const METHODS = new Set(["POST", "PUT", "PATCH", "DELETE"]);
const KEY = /^[\x21-\x7e]{1,255}$/;
/** This machine itself, which needs no network to be reached. */
const HERE = /^(?:(?:.+\.)?localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?$/;
const ACCOUNT_CHARS_MAX = 512;
const OVER = "the time for all attempts is over";
const FORGOTTEN = "the server has forgotten its key by now: a retry could do it twice";

/**
 * @typedef {object} Call
 * @property {string} operation
 * @property {string} host
 * @property {string} key
 * @property {number} until When the server forgets the key.
 * @property {string | undefined} intent
 * @property {boolean} isNew Nothing was sent under its key before.
 * @property {(signal: AbortSignal) => Request} request A fresh copy: a request is sent only once.
 * @property {string | null} once Why it must not be sent twice.
 *
 * @typedef {object} Asked What tells a request from others.
 * @property {string | null} print Null for a stream: nobody can look inside.
 * @property {string} by Whose request it is, as far as its credentials tell.
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
  #account;
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
    this.#account = "account" in options ? checkedAccount(options.account) : "";
    this.#intents = new Intents(shelf, shelfS, retentionS, this.#account, this.#world);
    for (const [name, value] of Object.entries({ shelfS, retentionS, ...this.#retries })) {
      if (typeof value === "number" && value > 0) continue;
      throw new TypeError(`${name} is ${JSON.stringify(value)}: give a number, more than 0`);
    }
  }

  /**
   * As the browser's own `fetch`, for requests that may be sent again.
   *
   * The answer is whole when it is given. What changes nothing is sent as it is. An intent that is
   * settled gives its answer again, and nothing is sent (`outcomeOf(answer).remembered`): status,
   * Content-Type and a body of up to 64 KiB.
   *
   * Throws an `OncekeyError`: "mismatch" where the key belongs to another request, "settled" where the
   * name does, "too-old" where the server has forgotten the key, "no-answer" where the attempts are
   * used up without one, "no-storage" where the key cannot be kept (nothing was sent). Throws the
   * signal's reason when aborted.
   *
   * @param {RequestInfo | URL} input
   * @param {Init} [init]
   * @returns {Promise<Response>}
   */
  async fetch(input, { intent, note = "", key, settle = true, ...init } = {}) {
    const signal = init.signal ?? (input instanceof Request ? input.signal : undefined);
    const request = new Request(input, { ...init, signal: null });
    // `fetch` itself leaves "patch" as it is, and servers may take it for PATCH.
    if (!METHODS.has(request.method.toUpperCase())) return this.#world.fetch(new Request(request, { signal }));
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
    const isStream = typeof ReadableStream !== "undefined" && init.body instanceof ReadableStream;
    // A blob can be sent often, is the same bytes each time (a form's boundary too), and a large one
    // need not be in memory.
    const body = isStream ? null : await request.blob();
    const isNamed = intent !== undefined || brought !== undefined;
    const print = body && isNamed ? await printOf(request, body) : null;
    const asked = { print, by: this.#by(request) };
    const begun = await this.#intents.open(intent, mine, origin, note, asked);
    if (begun.answer && begun.settled !== undefined) {
      signal?.throwIfAborted();
      return toldAgain(begun.key, begun.answer);
    }
    const isNew = brought === undefined && begun.key === mine;
    const call = this.#prepared(request, body, { ...begun, intent, isNew });
    if (print !== null) this.#compare(call, origin, print);
    const ended = await this.#deliver(call, signal);
    if (intent !== undefined) {
      await anyway(() => this.#intents.learn(origin, ended.answer));
      await anyway(async () => {
        const settled = await this.#intents.close(begun, settle, ended, asked);
        ended.verdict = { ...ended.verdict, settled };
      });
    }
    return this.#given(call, ended);
  }

  /**
   * The next request of this name is a new intent with a new key, whatever became of the last one. Call
   * it where the user decides to do it again ("Order another one"), never where the request is sent.
   *
   * @param {string} intent
   * @returns {Promise<Intent | null>} What was given up, if it had no final answer: nobody knows whether
   *   it was carried out.
   */
  begin(intent) {
    return this.#intents.begin(intent);
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
    return (await this.#intents.open(intent, newKey(this.#world), origin, note)).key;
  }

  /**
   * What this account began, here or in another tab or before a reload, and has no final answer yet;
   * the oldest first. Send it again under its name.
   *
   * @returns {Promise<Intent[]>}
   */
  unsettled() {
    return this.#intents.list();
  }

  /**
   * This intent is done, or given up. With a final answer that is kept it stays settled under its name;
   * otherwise the next of this name is a new one, with a new key.
   *
   * @param {string} intent
   * @param {string} [key] Only if it still has this key.
   */
  async settle(intent, key) {
    await this.#intents.settle(intent, key);
  }

  /**
   * The user signs out: forget all answers of this account. Keys without a final answer stay, because
   * what they were sent with may have been carried out; what comes of them is not kept.
   *
   * @param {{ everyone?: boolean }} [more] `everyone`: all accounts that use this browser.
   * @returns {Promise<Intent[]>} What has no final answer yet.
   */
  signOut({ everyone = false } = {}) {
    return this.#intents.signOut(everyone);
  }

  // ---------------------------------------------------------------------------------- parts

  /**
   * Whose request this is. Where no account is given, other credentials may be another one's.
   *
   * @param {Request} request
   */
  #by(request) {
    const said = this.#account ? null : request.headers.get("authorization");
    return said === null ? "" : sha256(said);
  }

  /**
   * @param {Request} request
   * @param {Blob | null} body
   * @param {{ key: string, until: number, intent: string | undefined, isNew: boolean }} begun
   * @returns {Call}
   */
  #prepared(request, body, { key, until, intent, isNew }) {
    const headers = new Headers(request.headers);
    headers.set(this.#header, key);
    const host = new URL(request.url).host;
    const about = { operation: `${request.method} ${host}`, host, key, until, intent, isNew };
    const copy = (/** @type {AbortSignal} */ signal) =>
      new Request(request, { headers, signal, ...(body && { body }) });
    const once = body ? null : "its body is a stream, which cannot be sent twice";
    return { ...about, once, request: copy };
  }

  /**
   * Warn of a key that was sent before with another request: it is the caller's mistake, and a server
   * that does not compare would hide it.
   *
   * @param {Call} call
   * @param {string} origin
   * @param {string} print
   */
  #compare({ key, operation }, origin, print) {
    if (!this.#reuse.differs(`${origin} ${key}`, print)) return;
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
   * @returns {Promise<Ended>}
   */
  async #deliver(call, signal) {
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
      const first = call.isNew && attempt === 1;
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
      throw new OncekeyError("mismatch", hidden(detail, key), { key, attempts, fields });
    }
    if ("error" in answer) {
      const times = attempts === 1 ? "once" : `${attempts} times`;
      const sent = `Sent ${times}, and nobody knows whether it was carried out. Not again`;
      const unsent = call.isNew ? "Not sent" : "Not sent this time";
      const named =
        call.intent === undefined
          ? ` (its short hash is ${shortHash(key)}).`
          : `: that of the intent ${call.intent}.`;
      const move =
        gaveUp === FORGOTTEN
          ? "Find out there whether it was done."
          : `To retry, send the same request with the same key${named}`;
      const message = `${attempts ? sent : unsent}, because ${gaveUp}. ${move}`;
      throw new OncekeyError("no-answer", message, { cause: answer.error, key, attempts });
    }
    const { headers } = answer.response;
    const expires = headers.get("idempotency-expires");
    const { settled } = verdict;
    const said = { replayed: replayed(headers), expires, remembered: false, withoutBody: false };
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

/** @param {unknown} account @returns {string} */
function checkedAccount(account) {
  if (typeof account === "string" && account && account.length <= ACCOUNT_CHARS_MAX) {
    return encodeURIComponent(account);
  }
  throw new TypeError(
    `account is ${JSON.stringify(account)}: give a text of 1 to ${ACCOUNT_CHARS_MAX} characters, as in ` +
      "account: String(user.id), and make the client when the user is known",
  );
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
// As in oncekey/client/_classify.py: what may end differently without anybody changing anything is
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
  ...["in-flight", "newer-record", "no-room", "quota-exceeded", "store-unavailable", "unsettled"],
]);
const BEYOND_RETRY = new Set([
  ...["outcome-unknown", "answer-not-kept", "stale-answer", "too-old", "key-expired"],
  "transaction-ended",
]);
/** Who asks, and how often, was judged before what is asked: an earlier attempt may have been carried out. */
const NOT_LET_IN = new Set([401, 403, 407, ...PASSING_STATUSES]);

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
  if (status < 400) return { again: false, settled: status >= 200 && !isElsewhere(answer.response) };
  const said = json(answer.body);
  const kind = kindOf(said, status, profile);
  if (kind === "mismatch") return { again: false, settled: false, mismatch: mismatchOf(said) };
  const unknown = headers.get("idempotency-outcome") === "unknown"; // a retry does not run
  if (unknown || replayed(headers) || !passing(status, headers, said, kind, profile)) {
    // What was sent before may have been carried out, and this come from what stands before the server:
    // another release, or a token that has expired. What answered with a redirect may have done it, too.
    const isOpen =
      (status >= 500 && !replayed(headers)) ||
      (!first && !isStored(headers)) ||
      isElsewhere(answer.response);
    const nobodyKnows = unknown || BEYOND_RETRY.has(kind ?? "") || isOpen;
    return { again: false, settled: !NOT_LET_IN.has(status) && !nobodyKnows };
  }
  const asked = headers.get("retry-after");
  return { ...AGAIN, retryAfterS: asked === null ? null : retryAfter(asked, dateOf(headers) ?? wall) };
}

/**
 * Whether a redirect led to it, and it does not say that it is stored: a login page, or the page of what
 * was made. That is no answer to what was sent.
 *
 * @param {Response} response
 */
function isElsewhere({ redirected, headers }) {
  return redirected && !isStored(headers);
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
  ...["too-old", "key-expired", "quota-exceeded", "no-room", "store-unavailable", "unsettled"],
  "transaction-ended",
  ...["key-not-found"],
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

/** The tokens of every host that was asked lately (oncekey/client/_budget.py). */
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
const JSON_BYTES_MAX = 1024 * 1024;
const PIECE_BYTES = 1024 * 1024;

/** Which request a key came with, as far back as a bounded memory goes (oncekey/client/_reuse.py). */
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
 * What tells a request from another one: method, address and type; JSON by value, forms with files part
 * by part, anything else by its bytes. Where that is in doubt, two requests are not the same. A digest
 * and not the text, which may hold secrets.
 *
 * @param {Request} request
 * @param {Blob} body
 * @returns {Promise<string>}
 */
async function printOf(request, body) {
  const url = new URL(request.url);
  url.hash = "";
  url.searchParams.sort();
  const said = request.headers.get("content-type") ?? "";
  const type = said.split(";", 1)[0]?.trim().toLowerCase() ?? "";
  const print =
    type === "multipart/form-data"
      ? await printOfForm(body, said)
      : isJson(type) && body.size <= JSON_BYTES_MAX
        ? sha256(canonical(await body.text()))
        : await printOfBytes(body);
  return sha256(JSON.stringify([request.method, url.href, type, print]));
}

/** @param {string} type */
function isJson(type) {
  return type === "application/json" || type.endsWith("+json");
}

/** A piece at a time: a large file need not be in memory. @param {Blob} body */
async function printOfBytes(body) {
  const parts = [];
  for (let at = 0; at < body.size; at += PIECE_BYTES) {
    parts.push(sha256(new Uint8Array(await body.slice(at, at + PIECE_BYTES).arrayBuffer())));
  }
  return `${body.size}:${parts.join()}`;
}

/**
 * Its parts in their order, without the boundary between them, which is another one each time.
 *
 * @param {Blob} body
 * @param {string} type
 */
async function printOfForm(body, type) {
  const form = new Response(body, { headers: { "content-type": type } }).formData();
  const parts = await form.catch(() => null);
  if (parts === null) return printOfBytes(body);
  const said = [];
  for (const [name, value] of parts) {
    if (typeof value === "string") said.push([name, value]);
    else said.push([name, value.name, value.type, await printOfBytes(value)]);
  }
  return JSON.stringify(said);
}

/**
 * JSON whose names are in order, whoever wrote it. What JavaScript would write otherwise is left as it
 * is, but for blanks: large and long numbers, which it rounds, or a name that comes twice.
 *
 * @param {string} text
 */
function canonical(text) {
  try {
    const value = JSON.parse(text);
    if (JSON.stringify(value) !== text.replace(/("(?:[^"\\]|\\.)*")|\s+/g, "$1")) return text;
    return `sorted ${JSON.stringify(value, (_, each) =>
      typeof each === "object" && each !== null && !Array.isArray(each)
        ? Object.fromEntries(Object.entries(each).sort(([one], [other]) => (one < other ? -1 : 1)))
        : each,
    )}`;
  } catch {
    return text;
  }
}

const ROUNDS = Int32Array.from(
  (
    "428a2f9871374491b5c0fbcfe9b5dba53956c25b59f111f1923f82a4ab1c5ed5d807aa9812835b01243185be550c7dc3" +
    "72be5d7480deb1fe9bdc06a7c19bf174e49b69c1efbe47860fc19dc6240ca1cc2de92c6f4a7484aa5cb0a9dc76f988da" +
    "983e5152a831c66db00327c8bf597fc7c6e00bf3d5a7914706ca63511429296727b70a852e1b21384d2c6dfc53380d13" +
    "650a7354766a0abb81c2c92e92722c85a2bfe8a1a81a664bc24b8b70c76c51a3d192e819d6990624f40e3585106aa070" +
    "19a4c1161e376c082748774c34b0bcb5391c0cb34ed8aa4a5b9cca4f682e6ff3748f82ee78a5636f84c878148cc70208" +
    "90befffaa4506cebbef9a3f7c67178f2"
  ).match(/.{8}/g) ?? [],
  (digits) => parseInt(digits, 16),
);
const BEGINNING = [
  ...[0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19],
];

/**
 * SHA-256, in hexadecimal digits. The browser's own is only there for pages that came by https.
 *
 * @param {string | Uint8Array} given
 * @returns {string}
 */
export function sha256(given) {
  const bytes = typeof given === "string" ? new TextEncoder().encode(given) : given;
  const padded = new Uint8Array((Math.floor((bytes.length + 8) / 64) + 1) * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, bytes.length << 3);
  const state = Int32Array.from(BEGINNING); // signed: engines are several times as fast with those
  const words = new Int32Array(64);
  for (let at = 0; at < padded.length; at += 64) mix(state, words, view, at);
  return Array.from(state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

/**
 * @param {Int32Array} state
 * @param {any} words Of one block; any, because each index is within it.
 * @param {DataView} view
 * @param {number} at
 */
function mix(state, words, view, at) {
  /** @param {number} word @param {number} by */
  const turned = (word, by) => (word >>> by) | (word << (32 - by));
  for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(at + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const one = words[i - 15];
    const other = words[i - 2];
    const low = turned(one, 7) ^ turned(one, 18) ^ (one >>> 3);
    const high = turned(other, 17) ^ turned(other, 19) ^ (other >>> 10);
    words[i] = words[i - 16] + low + words[i - 7] + high;
  }
  /** @type {any} */
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i += 1) {
    const one = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25);
    const first = (h + one + ((e & f) ^ (~e & g)) + (ROUNDS[i] ?? 0) + words[i]) | 0;
    const other = turned(a, 2) ^ turned(a, 13) ^ turned(a, 22);
    const second = other + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = (d + first) | 0;
    d = c;
    c = b;
    b = a;
    a = (first + second) | 0;
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] = (state[i] ?? 0) + word));
}

/**
 * What stands for a key in messages and logs, there and here (oncekey/_core/key.py).
 *
 * @param {string} key
 */
function shortHash(key) {
  return sha256(`15:oncekey/short/1${key.length}:${key}`).slice(0, 12);
}

/** A text that names no key: what a server says may. @param {string} said @param {string} key */
function hidden(said, key) {
  const alone = key.replace(/[^0-9A-Za-z]/g, "\\$&");
  return said.replace(new RegExp(`(^|[^0-9A-Za-z])${alone}(?![0-9A-Za-z])`, "g"), `$1${shortHash(key)}`);
}

// ------------------------------------------------------------------------------------ what is settled

/**
 * The answer that settled an intent, as it is kept.
 *
 * @typedef {object} Kept
 * @property {number} status
 * @property {string} type Its Content-Type; empty for none.
 * @property {string | null} body In base64; null where it was too long, or is the oldest of many.
 * @property {string | null} expires
 * @property {number} until How long it is remembered, in seconds since 1970.
 * @property {string | null} print What was asked, and by whom.
 * @property {string} by
 */

const KEPT_BODY_BYTES_MAX = 65_536;
/** Statuses whose answers have no body, not even an empty one. */
const BODILESS = new Set([204, 205, 304]);

/**
 * What to keep of the answer that ended an intent; null where its name is free again: for a refusal that
 * the server did not keep either.
 *
 * @param {Ended} ended
 * @param {Asked} asked
 * @param {string} key
 * @param {number} until
 * @returns {Kept | null}
 */
function keptOf({ answer, verdict }, { print, by }, key, until) {
  if ("error" in answer || !verdict.settled) return null;
  const { response, body } = answer;
  const { status, headers } = response;
  if (!response.ok && !isStored(headers)) return null;
  const isShort = body === null ? response.body === null : body.length <= KEPT_BODY_BYTES_MAX;
  const type = headers.get("content-type") ?? "";
  const expires = headers.get("idempotency-expires");
  return { status, type, body: isShort ? base64(body) : null, expires, until, print, by };
}

/**
 * Whether the server says that it keeps this answer under its key.
 *
 * @param {Headers} headers
 */
function isStored(headers) {
  const says = ["idempotency-expires", "idempotency-key"].some((name) => headers.get(name) !== null);
  return says || replayed(headers);
}

/** A refusal: nothing was done, and another request may be. @param {Kept} kept */
function isRefusal({ status }) {
  return status >= 400 && status < 500;
}

/** @param {Kept} kept @param {Asked} asked */
function isSame({ print, by }, asked) {
  return print !== null && print === asked.print && by === asked.by;
}

/**
 * The answer that settled an intent, once more.
 *
 * @param {string} key
 * @param {Kept} kept
 */
function toldAgain(key, { status, type, body, expires }) {
  const bytes = body === null || BODILESS.has(status) ? null : bytesOf(body);
  const answer = new Response(bytes, { status, headers: type ? { "content-type": type } : {} });
  const said = { replayed: true, expires, gaveUp: null, settled: true };
  outcomes.set(answer, { key, attempts: 0, ...said, remembered: true, withoutBody: body === null });
  return answer;
}

/** @param {Uint8Array | null} bytes */
function base64(bytes) {
  return btoa(Array.from(bytes ?? [], (byte) => String.fromCharCode(byte)).join(""));
}

/** @param {string} text */
function bytesOf(text) {
  return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
}

// ------------------------------------------------------------------------------------ which intents there are

const INTENTS = "oncekey/intent";
const SERVER = "oncekey/server/";
const NAME_CHARS_MAX = 512;
const NOTE_CHARS_MAX = 16_384;
/** A key that is given out now is used for a while: its retries must arrive in time as well. */
const MARGIN_S_MAX = 120;
const LEARNT_APART = 0.05;
/** How much one browser keeps, for all accounts: of more, the oldest goes first, its body before its name. */
const SETTLED_MAX = 1000;
const BODIES_MAX = 64;
/** What is not settled never goes for something newer: that is refused. */
const UNSETTLED_MAX = 1000;
/** So long after its server has forgotten its key, whoever sends an intent is told so. */
const TOO_OLD_S_MAX = 30 * 24 * 3600;

/**
 * What is written down of an intent.
 *
 * @typedef {object} Written
 * @property {string} [account] Absent where none was given.
 * @property {string} name
 * @property {string} key
 * @property {number} begun
 * @property {string} origin
 * @property {string} note
 * @property {Kept} [answer] There once it was answered.
 * @property {number} [settled] Since when, in seconds since 1970.
 * @property {boolean} [left] Its account has signed out meanwhile: its answer is not to be kept.
 * @property {boolean} [bare] Somebody has left it, and somebody sends it again: only that is kept.
 * @property {boolean} [shared] More than one call has its key: each may be answered otherwise.
 *
 * @typedef {Written & { until: number, retentionS: number }} Opened
 */

/** Which intents there are, which keys they have, and how they ended (oncekey/client/_journal.py). */
class Intents {
  #given;
  /** @type {Shelf | undefined} */
  #chosen;
  #shelfS;
  #retentionS;
  #account;
  #world;
  /** How many more may be begun before they are counted again. */
  #room = 0;

  /**
   * @param {Shelf | undefined} shelf
   * @param {number} shelfS
   * @param {number} retentionS
   * @param {string} account Empty for none.
   * @param {World} world
   */
  constructor(shelf, shelfS, retentionS, account, world) {
    this.#given = shelf;
    this.#shelfS = shelfS;
    this.#retentionS = retentionS;
    this.#account = account;
    this.#world = world;
  }

  get #shelf() {
    return (this.#chosen ??= bounded(this.#given ?? usualShelf(), this.#shelfS, this.#world));
  }

  /**
   * The intent of this name: a new one with this key, written down, or the one that there is. If that is
   * settled, and the same request is asked for, its answer is there.
   *
   * @param {string | undefined} name Undefined: an intent that nobody keeps.
   * @param {string} key
   * @param {string} origin
   * @param {string} note
   * @param {Asked} [asked] Absent where the key alone is wanted.
   * @returns {Promise<Opened>}
   */
  async open(name, key, origin, note, asked) {
    const wall = this.#world.wall();
    const fresh = { name: name ?? "", key, begun: wall, origin, note };
    const retentionS = this.#retentionS;
    if (name === undefined) return { ...fresh, until: wall + retentionS, retentionS };
    mustFit(name, note);
    const owned = this.#account ? { account: this.#account, ...fresh } : fresh;
    const intent = await kept(async () => {
      const found = await this.#change(name, (it) => opened(it, owned, asked, wall));
      if (found.key === key && !(await this.#hasRoom())) {
        await this.#change(name, (it) => (it?.key === key ? undefined : it));
        throw new OncekeyError("no-storage", FULL);
      }
      return this.#dated(found);
    });
    const { answer } = intent;
    if (answer && intent.settled !== undefined) {
      if (asked ? !isSame(answer, asked) : wall >= intent.until) throw taken(name, answer);
    } else if (wall >= intent.until) throw tooOld(intent);
    return intent;
  }

  /**
   * Free this name, whatever is known of it.
   *
   * @param {string} name
   * @returns {Promise<Intent | null>}
   */
  async begin(name) {
    mustFit(name);
    return kept(async () => {
      /** @type {any} */
      let before;
      await this.#change(name, (it) => {
        before = it;
        return undefined;
      });
      return isIntent(before) && before.settled === undefined ? shown(await this.#dated(before)) : null;
    });
  }

  /**
   * It was answered: keep the answer if it is final, or free the name of what may be begun anew.
   *
   * @param {Opened} begun
   * @param {boolean} settle False: whoever sent it will say when it is settled.
   * @param {Ended} ended
   * @param {Asked} asked
   * @returns {Promise<boolean>} Whether the intent is done with.
   */
  async close({ name, key, retentionS }, settle, ended, asked) {
    if (!ended.verdict.settled) return false;
    const wall = this.#world.wall();
    const saidS = "error" in ended.answer ? null : this.#left(ended.answer);
    // What other routes of its server remember for a shorter time says nothing of this one.
    const until = wall + (saidS ?? Math.max(retentionS, this.#retentionS));
    const answer = keptOf(ended, asked, key, until);
    let isOpen = false;
    /** @param {Kept | null} kept */
    const write = (kept) =>
      this.#change(name, (it) => {
        // Whoever has the same key may still get it done: it must stay theirs, and the next one's.
        isOpen = it?.key === key && !kept && it.shared === true && it.settled === undefined;
        return it?.key === key && !isOpen ? closed(it, kept, settle, wall) : it;
      });
    try {
      await write(answer);
    } catch (error) {
      const isFull = error instanceof Error && error.name === "QuotaExceededError";
      if (!isFull || !answer?.body) throw error;
      await write({ ...answer, body: null });
    }
    if (answer) await this.#tidy();
    return !isOpen;
  }

  /** @param {string} name @param {string} [key] */
  async settle(name, key) {
    const wall = this.#world.wall();
    await this.#change(name, (it) => {
      // Another tab may have begun it anew: that one stays.
      if (key !== undefined && it?.key !== key) return it;
      return it?.settled === undefined ? closed(it, it?.answer ?? null, true, wall) : it;
    });
    this.#room = 0;
  }

  /**
   * @param {boolean} everyone
   * @returns {Promise<Intent[]>}
   */
  async signOut(everyone) {
    const found = (await this.#shelf.all(everyone ? INTENTS : placeOf(this.#account))).filter(isIntent);
    const left = await Promise.all(found.map((each) => this.#shelf.update(at(each), leaving)));
    const unsettled = left.map((it, index) => (it === undefined ? undefined : found[index]));
    return this.#listed(unsettled.filter((it) => it !== undefined));
  }

  /** @returns {Promise<Intent[]>} */
  async list() {
    const found = await this.#shelf.all(placeOf(this.#account));
    // Where no account is given, nobody can tell whose those are that somebody left.
    const mine = (/** @type {any} */ it) => isIntent(it) && !(it.left && !it.account);
    return this.#listed(found.filter((it) => mine(it) && it.settled === undefined));
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
    const retentionS = this.#left(answer);
    if (retentionS === null) return;
    const [known] = await this.#shelf.all(`${SERVER}${origin}/`);
    if (known?.retentionS * (1 - LEARNT_APART) <= retentionS) return;
    const shorter = (/** @type {any} */ before) =>
      before?.retentionS < retentionS ? before : { retentionS };
    await this.#shelf.update(`${SERVER}${origin}/`, shorter);
  }

  /**
   * How long the server remembers this answer, as it says; null where it does not, or where its clock is
   * not shown and ours cannot be the same.
   *
   * @param {{ response: Response }} answer
   */
  #left({ response: { headers } }) {
    const until = parseDate((headers.get("idempotency-expires") ?? "").trim());
    const leftS = until === null ? 0 : until - (dateOf(headers) ?? this.#world.wall());
    return leftS > 0 ? leftS : null;
  }

  /** @param {string} name @param {(it: any) => any} change */
  #change(name, change) {
    return this.#shelf.update(placeOf(this.#account) + name, change);
  }

  /** @param {any[]} found @returns {Promise<Intent[]>} */
  async #listed(found) {
    const intents = await Promise.all(found.map(async (each) => shown(await this.#dated(each))));
    return intents.sort((one, other) => one.begun - other.begun);
  }

  async #hasRoom() {
    if (this.#room <= 0) this.#room = UNSETTLED_MAX + 1 - (await this.#tidy());
    this.#room -= 1;
    return this.#room >= 0;
  }

  /** Drop what is too much or too old. Gives how many are not settled. */
  async #tidy() {
    const wall = this.#world.wall();
    const all = (await this.#shelf.all(INTENTS)).filter(isIntent);
    const settled = all.filter((it) => it.settled !== undefined);
    settled.sort((one, other) => other.settled - one.settled);
    const over = settled.filter((it, index) => index >= SETTLED_MAX || wall >= it.answer.until);
    const unsettled = all.filter((it) => it.settled === undefined);
    const old = unsettled.filter((it) => wall - it.begun > this.#retentionS + TOO_OLD_S_MAX);
    for (const it of [...over, ...old]) await this.#shelf.update(at(it), droppedIf(it));
    for (const it of settled.slice(BODIES_MAX)) {
      if (it.answer.body !== null && !over.includes(it)) await this.#shelf.update(at(it), bodiless(it));
    }
    return unsettled.length - old.length;
  }

  /** @param {Written} intent @returns {Promise<Opened>} */
  async #dated(intent) {
    const retentionS = await this.#retention(intent.origin);
    const until = intent.begun + retentionS - Math.min(MARGIN_S_MAX, retentionS / 10);
    return { ...intent, until, retentionS };
  }

  /** @param {string} origin */
  async #retention(origin) {
    const [known] = await this.#shelf.all(`${SERVER}${origin}/`);
    return typeof known?.retentionS === "number" ? known.retentionS : this.#retentionS;
  }
}

/** Where the intents of an account are kept. @param {string} account */
function placeOf(account) {
  return account ? `${INTENTS}-of/${account}/` : `${INTENTS}/`;
}

/** @param {Written} intent */
function at({ account = "", name }) {
  return placeOf(account) + name;
}

/** @param {string} name @param {string} [note] */
function mustFit(name, note = "") {
  if (name && name.length <= NAME_CHARS_MAX && note.length <= NOTE_CHARS_MAX) return;
  throw new TypeError(
    `an intent has a name of 1 to ${NAME_CHARS_MAX} characters, and a note of at most ` +
      `${NOTE_CHARS_MAX}`,
  );
}

// What becomes of what is written down. These run within one update: nobody comes in between.

/**
 * @param {any} it
 * @param {Written} fresh
 * @param {Asked | undefined} asked
 * @param {number} wall
 */
function opened(it, fresh, asked, wall) {
  if (!isIntent(it)) return fresh;
  const { left, ...stays } = it;
  if (it.settled === undefined) {
    return { ...stays, shared: true, ...(left && !it.account && { bare: true }) };
  }
  if (wall >= it.answer.until) return fresh;
  return asked && isRefusal(it.answer) && !isSame(it.answer, asked) ? fresh : it;
}

/**
 * @param {any} it
 * @param {Kept | null} answer
 * @param {boolean} settle
 * @param {number} wall
 */
function closed(it, answer, settle, wall) {
  if (it === undefined || it.settled !== undefined) return it;
  if (!answer || it.left) return settle ? undefined : it;
  const kept = it.bare ? { ...answer, body: null } : answer;
  return settle ? { ...it, note: "", answer: kept, settled: wall } : { ...it, answer: kept };
}

/** @param {any} it */
function leaving(it) {
  if (!isIntent(it) || it.settled !== undefined) return undefined;
  const { answer, ...stays } = it;
  return { ...stays, left: true, note: it.account ? it.note : "" };
}

/** @param {Written} then */
function droppedIf({ key, settled }) {
  return (/** @type {any} */ it) => (it?.key === key && it.settled === settled ? undefined : it);
}

/** @param {Written} then */
function bodiless({ key }) {
  return (/** @type {any} */ it) =>
    it?.key === key && it.answer ? { ...it, answer: { ...it.answer, body: null } } : it;
}

/** @param {Opened} intent @returns {Intent} */
function shown({ name, key, begun, until, origin, note }) {
  return { name, key, begun, until, origin, note };
}

const FULL =
  `Nothing was sent: ${UNSETTLED_MAX} intents are not settled in this browser. Send them again under ` +
  "their names (unsettled), or settle what you have found out about.";

/** @param {string} name @param {Kept} answer */
function taken(name, { status }) {
  return new OncekeyError(
    "settled",
    `The intent ${name} is settled: it was answered ${status}, for another request or another login, ` +
      `so nothing was sent. To do this too, call begin(${JSON.stringify(name)}) first, or give it a ` +
      "name of its own.",
  );
}

/** @param {Opened} intent */
function tooOld({ name, key, begun, until }) {
  const hours = ((until - begun) / 3600).toFixed(1);
  return new OncekeyError(
    "too-old",
    `The intent ${name} was begun over ${hours} hours ago and never settled; its server has ` +
      "forgotten the key by now, so sending it again could do it twice. Find out at the server " +
      "whether it was done, then call settle(intent); a new key begins it anew.",
    { key },
  );
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
  const isKnown = typeof value?.key === "string" && typeof value.begun === "number";
  return isKnown && (value.settled === undefined || typeof value.answer?.until === "number");
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
