/**
 * oncekey for browsers: a `fetch` whose requests are retried and take effect once.
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
 * One key per intent. The key is stored before the first byte is sent, so a reload finds it, and every
 * retry and every tab sends the same one. An intent with a 2xx response stays settled under its name:
 * the same request gets that response again without being sent, until `begin` starts it anew or the
 * server forgets the key. The retry rules are those of `oncekey.client` in Python; one test checks both.
 *
 * No dependencies, no build step. Clock, randomness and network are parameters (`world`), so that a
 * test can drive it through hours in a moment.
 *
 * @module oncekey
 */

// ------------------------------------------------------------------------------------ options

/**
 * How long and how often one request is retried.
 *
 * @typedef {object} Retries
 * @property {number} attemptsMax
 * @property {number} budgetS The time for all attempts, pauses and being offline together. No attempt
 *   starts after it, and a running one gets no more time than is left.
 * @property {number} attemptS The timeout of one attempt: `fetch` itself would wait forever.
 * @property {number} backoffS The upper bound of the first pause; it doubles up to `backoffSMax`.
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
 * How many retries one host gets from this page, so that many requests do not overload a failing server.
 *
 * @typedef {object} RetryBudget
 * @property {number} tokensMax How many retries may happen in a burst.
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
 * @property {string} [header] The header with the key; default `Idempotency-Key`.
 * @property {string} [account] The account that owns the intents. Those of other accounts are invisible.
 * @property {Partial<Retries>} [retries]
 * @property {Partial<RetryBudget>} [budget]
 * @property {number} [retentionS] How long the server remembers keys, until it states that itself.
 * @property {number} [answerBytesMax] Longer responses are returned unread.
 * @property {(event: Attempted) => void} [onAttempt] Called before and after every attempt.
 * @property {Shelf} [shelf] The storage for intents.
 * @property {number} [shelfS] The timeout of that storage.
 * @property {Partial<World>} [world]
 */

/**
 * @typedef {object} OncekeyInit
 * @property {string} [intent] What this request is for, such as "cart-7/order". Its key and its final
 *   response are stored under this name.
 * @property {string} [note] Stored beside the key, to resume it after a reload. No secrets.
 * @property {string} [key] Your own key. It is not stored.
 * @property {boolean} [settle] False: keep the key until `client.settle(intent)`.
 *
 * @typedef {RequestInit & OncekeyInit} Init
 */

// ------------------------------------------------------------------------------------ results

/**
 * The delivery of a request: its key, attempts and result.
 *
 * @typedef {object} Outcome
 * @property {string} key
 * @property {number} attempts
 * @property {boolean} replayed This is a stored response: an earlier attempt had arrived after all.
 * @property {string | null} expires Until when the server says it remembers the key.
 * @property {string | null} gaveUp Why there was no further attempt, if one would have been appropriate.
 * @property {boolean} settled The intent is done.
 * @property {boolean} remembered Nothing was sent: this is the response that settled the intent.
 * @property {boolean} withoutBody It is remembered without its body, which was too long to store.
 */

/**
 * @typedef {object} Attempted
 * @property {"offline" | "sending" | "answered"} what
 * @property {string} operation The method and the host; paths and queries may contain personal data.
 * @property {string | undefined} intent
 * @property {string} key
 * @property {number} attempt Counted from 1.
 * @property {number} [status] Absent without a complete response.
 * @property {string} [error] The kind of network error.
 * @property {number} [seconds]
 * @property {boolean} [replayed]
 * @property {boolean} [mismatch]
 * @property {number | null} [retryInS] Null after the last attempt.
 * @property {string | null} [gaveUp]
 */

/**
 * An intent that was begun and is not settled.
 *
 * @typedef {object} Intent
 * @property {string} name
 * @property {string} key
 * @property {number} begun Seconds since 1970.
 * @property {number} until Until when its key may be sent.
 * @property {string} origin
 * @property {string} note
 */

/** @type {WeakMap<Response, Outcome>} */
const outcomes = new WeakMap();

/**
 * Return the `Outcome` of a response from a `Client`.
 *
 * @param {Response} answer
 * @returns {Outcome | undefined}
 */
export function outcomeOf(answer) {
  return outcomes.get(answer);
}

/**
 * Every error that is not `fetch`'s own; `kind` is its stable name. `sent` is false if this call sent
 * nothing. The message contains a short hash of the key; `key` is the key.
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
    // Error reporters list an error's own enumerable properties.
    Object.defineProperty(this, "key", { enumerable: false });
  }
}

// ------------------------------------------------------------------------------------ the client

const METHODS = new Set(["POST", "PUT", "PATCH", "DELETE"]);
const KEY = /^[\x21-\x7e]{1,255}$/;
/** This machine itself, which is reachable without a network. */
const LOOPBACK_HOST = /^(?:(?:.+\.)?localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?$/;
const ACCOUNT_CHARS_MAX = 512;
const OUT_OF_TIME = "the time for all attempts is over";
const FORGOTTEN = "the server has forgotten its key by now: a retry could do it twice";

/**
 * @typedef {object} Call
 * @property {string} operation
 * @property {string} host
 * @property {string} key
 * @property {number} until When the server forgets the key.
 * @property {string | undefined} intent
 * @property {boolean} isNew Nothing was sent with its key before.
 * @property {(signal: AbortSignal) => Request} request Makes a copy, as a request can be sent only once.
 * @property {string | null} once Why it must not be sent twice, if so.
 *
 * @typedef {object} RequestIdentity Distinguishes requests.
 * @property {string | null} print Its fingerprint; null for a stream, which cannot be inspected.
 * @property {string} by A digest of its credentials.
 *
 * @typedef {object} DeliveryResult
 * @property {Answer} answer
 * @property {number} attempts
 * @property {Verdict} verdict
 * @property {string | null} gaveUp
 */

/** Sends requests with keys and retries. One per page is enough. */
export class Client {
  #header;
  #profile;
  #retries;
  #answerBytesMax;
  #onAttempt;
  #world;
  #buckets;
  #sentRequests = new SentRequests();
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
    this.#account = "account" in options ? encodeAccount(options.account) : "";
    this.#intents = new Intents(shelf, shelfS, retentionS, this.#account, this.#world);
    for (const [name, value] of Object.entries({ shelfS, retentionS, ...this.#retries })) {
      if (typeof value === "number" && value > 0) continue;
      throw new TypeError(`${name} is ${JSON.stringify(value)}: give a number greater than 0`);
    }
  }

  /**
   * Like the browser's own `fetch`, with a key and retries.
   *
   * The response is complete when it is returned. Requests that change nothing are sent unchanged. A
   * settled intent returns its response again without sending (`outcomeOf(answer).remembered`): status,
   * Content-Type and a body of up to 64 KiB.
   *
   * Throws an `OncekeyError`: "mismatch" if the key belongs to another request, "settled" if the intent
   * does, "too-old" if the server has forgotten the key, "no-answer" if all attempts got no response,
   * "no-storage" if the key cannot be stored (nothing was sent). Throws the signal's reason when aborted.
   *
   * @param {RequestInfo | URL} input
   * @param {Init} [init]
   * @returns {Promise<Response>}
   */
  async fetch(input, { intent, note = "", key, settle = true, ...init } = {}) {
    const signal = init.signal ?? (input instanceof Request ? input.signal : undefined);
    const request = new Request(input, { ...init, signal: null });
    // `fetch` itself does not normalize "patch", and servers may take it for PATCH.
    if (!METHODS.has(request.method.toUpperCase())) return this.#world.fetch(new Request(request, { signal }));
    const given = request.headers.get(this.#header) ?? undefined;
    if ([intent, key, given].filter((each) => each !== undefined).length > 1) {
      throw new TypeError("give a request a key or an intent, not both");
    }
    if (request.mode === "no-cors") {
      throw new TypeError("mode no-cors sends no key and hides the response: use cors");
    }
    signal?.throwIfAborted();
    const origin = new URL(request.url).origin;
    const callersKey = key ?? given;
    const requestKey = callersKey ?? newKey(this.#world);
    if (!KEY.test(requestKey)) throw new TypeError("a key has 1 to 255 visible ASCII characters");
    const isStream = typeof ReadableStream !== "undefined" && init.body instanceof ReadableStream;
    // A blob can be sent repeatedly with the same bytes (including a form's boundary), and a large one
    // need not be in memory.
    const body = isStream ? null : await request.blob();
    const isNamed = intent !== undefined || callersKey !== undefined;
    const print = body && isNamed ? await printOf(request, body) : null;
    const asked = { print, by: this.#credentialsOf(request) };
    const begun = await this.#intents.open(intent, requestKey, origin, note, asked);
    if (begun.answer && begun.settled !== undefined) {
      signal?.throwIfAborted();
      return rememberedResponse(begun.key, begun.answer);
    }
    const isNew = callersKey === undefined && begun.key === requestKey;
    const call = this.#makeCall(request, body, { ...begun, intent, isNew });
    if (print !== null) this.#warnOfReuse(call, origin, print);
    const ended = await this.#deliver(call, signal);
    if (intent !== undefined) {
      await logErrors(() => this.#intents.learn(origin, ended.answer));
      await logErrors(async () => {
        const settled = await this.#intents.close(begun, settle, ended, asked);
        ended.verdict = { ...ended.verdict, settled };
      });
    }
    return this.#respond(call, ended);
  }

  /**
   * Start the intent of this name anew: its next request gets a new key. Call it where the user decides
   * to do it again ("Order another one"), never where the request is sent.
   *
   * @param {string} intent
   * @returns {Promise<Intent | null>} The previous intent, if it had no final response: whether it was
   *   carried out is unknown.
   */
  begin(intent) {
    return this.#intents.begin(intent);
  }

  /**
   * Return the stored key of an intent: its existing one, or a new one. Use it to do something before
   * you send the key as `key`, and settle the intent yourself.
   *
   * @param {string} intent
   * @param {{ note?: string, origin?: string }} [more] `origin`: its server.
   * @returns {Promise<string>}
   */
  async key(intent, { note = "", origin = globalThis.location?.origin ?? "" } = {}) {
    return (await this.#intents.open(intent, newKey(this.#world), origin, note)).key;
  }

  /**
   * List this account's intents without a final response, from all tabs and earlier page loads, oldest
   * first. Send each again under its name.
   *
   * @returns {Promise<Intent[]>}
   */
  unsettled() {
    return this.#intents.list();
  }

  /**
   * Mark this intent as done or given up. With a stored final response it stays settled under its name;
   * otherwise the next intent of this name gets a new key.
   *
   * @param {string} intent
   * @param {string} [key] Only if it still has this key.
   */
  async settle(intent, key) {
    await this.#intents.settle(intent, key);
  }

  /**
   * Forget all responses of this account when the user signs out. Keys without a final response stay,
   * because their requests may have been carried out; their responses will not be stored.
   *
   * @param {{ everyone?: boolean }} [more] `everyone`: all accounts in this browser.
   * @returns {Promise<Intent[]>} The intents without a final response.
   */
  signOut({ everyone = false } = {}) {
    return this.#intents.signOut(everyone);
  }

  // ---------------------------------------------------------------------------------- parts

  /**
   * Return a digest of a request's credentials. Without an account they may belong to anyone.
   *
   * @param {Request} request
   */
  #credentialsOf(request) {
    const said = this.#account ? null : request.headers.get("authorization");
    return said === null ? "" : sha256(said);
  }

  /**
   * @param {Request} request
   * @param {Blob | null} body
   * @param {{ key: string, until: number, intent: string | undefined, isNew: boolean }} begun
   * @returns {Call}
   */
  #makeCall(request, body, { key, until, intent, isNew }) {
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
   * Warn about a key that was sent before with another request: the caller's mistake, which a server
   * that does not compare would hide.
   *
   * @param {Call} call
   * @param {string} origin
   * @param {string} print
   */
  #warnOfReuse({ key, operation }, origin, print) {
    if (!this.#sentRequests.isDifferent(`${origin} ${key}`, print)) return;
    console.warn(
      `oncekey: ${operation}: this key was sent before with another request. A server refuses that, ` +
        "or returns the other request's response: use one key, or one name, per intent.",
    );
  }

  /**
   * Send until the response is final or no further attempt is allowed.
   *
   * @param {Call} call
   * @param {AbortSignal | null | undefined} signal
   * @returns {Promise<DeliveryResult>}
   */
  async #deliver(call, signal) {
    const deadline = this.#world.now() + this.#retries.budgetS;
    this.#buckets.earn(call.host, this.#world.now());
    /** @type {DeliveryResult} */
    let ended = {
      answer: { error: new Error(OFFLINE) },
      attempts: 0,
      verdict: RETRY_LATER,
      gaveUp: OUT_OF_TIME,
    };
    for (let attempt = 1; ; attempt += 1) {
      const isHere = LOOPBACK_HOST.test(call.host) && !(attempt > 1 && "error" in ended.answer);
      if (!isHere && !(await this.#online(call, attempt, deadline, signal))) {
        return { ...ended, gaveUp: `${OUT_OF_TIME}, and this device is offline` };
      }
      const sent = this.#world.now();
      if (sent >= deadline) return { ...ended, gaveUp: OUT_OF_TIME };
      // Monotonic clocks stop while a computer sleeps; the server's clock goes on.
      if (this.#world.wall() >= call.until) return { ...ended, gaveUp: FORGOTTEN };
      this.#notify(call, { what: "sending", attempt });
      signal?.throwIfAborted(); // `onAttempt` may have aborted it
      const answer = await this.#attempt(call, deadline - sent, signal);
      signal?.throwIfAborted();
      const now = this.#world.now();
      const first = call.isNew && attempt === 1;
      const verdict = judge(answer, this.#profile, this.#world.wall(), first);
      const after = this.#nextWait(call, attempt, verdict, now, deadline);
      const gaveUp = typeof after === "string" ? after : null;
      const retryInS = typeof after === "number" ? after : null;
      ended = { answer, attempts: attempt, verdict: gaveUp ? RETRY_LATER : verdict, gaveUp };
      this.#notify(call, { ...attemptedEvent(ended), what: "answered", seconds: now - sent, retryInS });
      if (retryInS === null) return ended;
      await this.#world.sleep(retryInS, signal);
    }
  }

  /**
   * Make one attempt: send, and read the response to its end, to detect a truncated one.
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
    const late = new DOMException("no complete response in time", "TimeoutError");
    const timesUp = () => cut.abort(late);
    const slept = this.#world.sleep(Math.min(leftS, this.#retries.attemptS), done.signal);
    slept.then(timesUp, () => undefined);
    try {
      const response = await this.#world.fetch(call.request(cut.signal));
      const body = await readWhole(response, this.#answerBytesMax);
      // A response that is returned unread can still be aborted.
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
   * Return how long to wait for the next attempt, why there is none, or null if none is needed.
   *
   * @param {Call} call
   * @param {number} attempt
   * @param {Verdict} verdict
   * @param {number} now
   * @param {number} deadline
   * @returns {number | string | null}
   */
  #nextWait(call, attempt, verdict, now, deadline) {
    if (!verdict.again) return null;
    if (call.once) return call.once;
    if (attempt >= this.#retries.attemptsMax) return `${attempt} attempts were made`;
    const leftS = deadline - now;
    const askedS = verdict.retryAfterS ?? 0;
    if (leftS <= 0) return OUT_OF_TIME;
    // An earlier retry would ignore the server's wish, and most likely fail.
    if (askedS >= leftS) {
      return `the server asks to wait ${askedS} s, longer than is left for all attempts`;
    }
    const { backoffS, backoffSMax } = this.#retries;
    const waitS = askedS + fullJitter(attempt - 1, backoffS, backoffSMax, this.#world.chance());
    if (waitS >= leftS) return OUT_OF_TIME;
    if (!this.#buckets.spend(call.host, now)) {
      return "the retry budget of this host is spent: too many requests to it fail";
    }
    return waitS;
  }

  /**
   * Wait for a network while there is time: sending while offline would waste an attempt.
   *
   * @param {Call} call
   * @param {number} attempt
   * @param {number} deadline
   * @param {AbortSignal | null | undefined} signal
   * @returns {Promise<boolean>}
   */
  async #online(call, attempt, deadline, signal) {
    if (this.#world.online()) return true;
    this.#notify(call, { what: "offline", attempt });
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

  /** @param {Call} call @param {DeliveryResult} ended @returns {Response} */
  #respond(call, { answer, attempts, verdict, gaveUp }) {
    const { key } = call;
    if (verdict.mismatch) {
      const { detail, fields } = verdict.mismatch;
      throw new OncekeyError("mismatch", redact(detail, key), { key, attempts, fields });
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
          ? "Check at the server whether it was carried out."
          : `To retry, send the same request with the same key${named}`;
      const message = `${attempts ? sent : unsent}, because ${gaveUp}. ${move}`;
      throw new OncekeyError("no-answer", message, { cause: answer.error, key, attempts });
    }
    const { headers } = answer.response;
    const expires = headers.get("idempotency-expires");
    const { settled } = verdict;
    const said = { replayed: isReplay(headers), expires, remembered: false, withoutBody: false };
    outcomes.set(answer.response, { key, attempts, ...said, gaveUp, settled });
    return answer.response;
  }

  /** @param {Call} call @param {Pick<Attempted, "what" | "attempt"> & Partial<Attempted>} event */
  #notify({ operation, intent, key }, event) {
    try {
      this.#onAttempt?.({ operation, intent, key, ...event });
    } catch (error) {
      console.error("oncekey: onAttempt failed; the request goes on:", error);
    }
  }
}

/** @param {unknown} account @returns {string} */
function encodeAccount(account) {
  if (typeof account === "string" && account && account.length <= ACCOUNT_CHARS_MAX) {
    return encodeURIComponent(account);
  }
  throw new TypeError(
    `account is ${JSON.stringify(account)}: give a text of 1 to ${ACCOUNT_CHARS_MAX} characters, as in ` +
      "account: String(user.id), and make the client when the user is known",
  );
}

/** @param {DeliveryResult} ended @returns {Omit<Attempted, "what" | "operation" | "intent" | "key">} */
function attemptedEvent({ answer, attempts, verdict, gaveUp }) {
  const about =
    "error" in answer
      ? { error: answer.error instanceof Error ? answer.error.name : "Error", replayed: false }
      : { status: answer.response.status, replayed: isReplay(answer.response.headers) };
  return { attempt: attempts, ...about, mismatch: verdict.mismatch !== undefined, gaveUp };
}

/**
 * Read a response to its end, leaving it readable; null if it is too long or endless.
 *
 * @param {Response} response
 * @param {number} bytesMax
 * @returns {Promise<Uint8Array | null>}
 */
async function readWhole(response, bytesMax) {
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

// ------------------------------------------------------------------------------------ classify responses
//
// As in oncekey/client/_classify.py: what may change by itself is retried. What the server says
// overrides the status; a stored response is final whatever its status.

/**
 * @typedef {{ response: Response, body: Uint8Array | null } | { error: unknown }} Answer
 *
 * @typedef {object} Verdict
 * @property {boolean} again Send the same request with the same key later.
 * @property {number | null} [retryAfterS]
 * @property {{ detail: string, fields: string[] }} [mismatch] The key belongs to another request.
 * @property {boolean} settled The intent is done: a new one may have a new key.
 */

/** @type {Readonly<Verdict>} */
const RETRY_LATER = Object.freeze({ again: true, settled: false });
const OFFLINE = "this device is offline";
const REFUSAL_BYTES_MAX = 65_536;
const TRANSIENT_STATUSES = new Set([408, 425, 429]);
const TRANSIENT_KINDS = new Set([
  ...["in-flight", "newer-record", "no-room", "quota-exceeded", "store-unavailable", "unsettled"],
]);
const FINAL_KINDS = new Set([
  ...["outcome-unknown", "answer-not-kept", "stale-answer", "too-old", "key-expired"],
  "transaction-ended",
]);
/** Checks of login and rate come before the request itself: an earlier attempt may have been carried out. */
const NOT_ADMITTED = new Set([401, 403, 407, ...TRANSIENT_STATUSES]);

/**
 * Decide what to do after a response, or the lack of one.
 *
 * @param {Answer} answer
 * @param {Profile} profile
 * @param {number} wall Seconds since 1970.
 * @param {boolean} [first] Nothing was sent with this key before.
 * @returns {Verdict}
 */
export function judge(answer, profile, wall, first = true) {
  if ("error" in answer) return RETRY_LATER;
  const { status, headers } = answer.response;
  if (status < 400) return { again: false, settled: status >= 200 && !isElsewhere(answer.response) };
  const said = json(answer.body);
  const kind = kindOf(said, status, profile);
  if (kind === "mismatch") return { again: false, settled: false, mismatch: mismatchOf(said) };
  const unknown = headers.get("idempotency-outcome") === "unknown"; // a retry does not run
  if (unknown || isReplay(headers) || !isTransient(status, headers, said, kind, profile)) {
    // An earlier send may have been carried out although this response says otherwise: it may come from
    // another release, a proxy, or an expired token. A server that redirected may have done it, too.
    const isOpen =
      (status >= 500 && !isReplay(headers)) ||
      (!first && !isStored(headers)) ||
      isElsewhere(answer.response);
    const nobodyKnows = unknown || FINAL_KINDS.has(kind ?? "") || isOpen;
    return { again: false, settled: !NOT_ADMITTED.has(status) && !nobodyKnows };
  }
  const asked = headers.get("retry-after");
  return { ...RETRY_LATER, retryAfterS: asked === null ? null : retryAfter(asked, dateOf(headers) ?? wall) };
}

/**
 * Whether it was redirected to and is not marked as stored: a login page, or the page of what was
 * created. That is not a response to what was sent.
 *
 * @param {Response} response
 */
function isElsewhere({ redirected, headers }) {
  return redirected && !isStored(headers);
}

/**
 * Return the server's clock, which may differ from ours by hours; null if it is not shown.
 *
 * @param {Headers} headers
 */
function dateOf(headers) {
  return parseDate((headers.get("date") ?? "").trim());
}

/** @param {Headers} headers */
function isReplay(headers) {
  return (headers.get("idempotent-replayed") ?? "").trim().toLowerCase() === "true";
}

/**
 * @param {number} status
 * @param {Headers} headers
 * @param {any} said
 * @param {string | undefined} kind
 * @param {Profile} profile
 */
function isTransient(status, headers, said, kind, profile) {
  for (const name of ["stripe-should-retry", "x-should-retry"]) {
    const word = (headers.get(name) ?? "").trim().toLowerCase();
    if (word === "true" || word === "false") return word === "true";
  }
  if (kind !== undefined && typeof said?.retryable === "boolean") return said.retryable;
  if (TRANSIENT_KINDS.has(kind ?? "") || status >= 500 || TRANSIENT_STATUSES.has(status)) return true;
  if (headers.get("transient-error") === "true") return true;
  // A 409 without a reason: Stripe's means a first request in flight. Elsewhere it is more likely the
  // application's own, unless it has a Retry-After.
  if (status !== 409 || FINAL_KINDS.has(kind ?? "")) return false;
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
  if (profile !== "stripe") return kindByIetfDraft(said, status);
  const kind = STRIPE_CODES.get(said?.error?.code);
  if (kind !== undefined || said?.error?.type !== "idempotency_error") return kind;
  return status === 409 ? "in-flight" : "mismatch";
}

/**
 * The IETF draft defines statuses but no names, so look for the word in type and title.
 *
 * @param {any} said
 * @param {number} status
 * @returns {string | undefined}
 */
function kindByIetfDraft(said, status) {
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
// The obsolete date formats, and their replacement in the current one.
const OBSOLETE = [
  [/^[A-Z][a-z]{5,8}, (\d\d)-([A-Z][a-z]{2})-([0-6]\d) ([\d:]{8}) GMT$/, "Any, $1 $2 20$3 $4 GMT"],
  [/^[A-Z][a-z]{5,8}, (\d\d)-([A-Z][a-z]{2})-([7-9]\d) ([\d:]{8}) GMT$/, "Any, $1 $2 19$3 $4 GMT"],
  [/^[A-Z][a-z]{2} ([A-Z][a-z]{2})  (\d) ([\d:]{8}) (\d{4})$/, "Any, 0$2 $1 $4 $3 GMT"],
  [/^[A-Z][a-z]{2} ([A-Z][a-z]{2}) (\d\d) ([\d:]{8}) (\d{4})$/, "Any, $2 $1 $4 $3 GMT"],
];
const DATE = /^[A-Z][a-z]{2}, (\d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT)$/;

/**
 * Return a random delay from 0 up to a bound that doubles with every attempt, counted from 0, so that
 * requests that failed together are not retried together.
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
 * Parse a Retry-After header to seconds, from 0 to an hour; null if it cannot be read.
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
 * Parse an HTTP date to seconds since 1970; null if it is not one.
 *
 * @param {string} text
 * @returns {number | null}
 */
export function parseDate(text) {
  const now = OBSOLETE.reduce((so, [form, sent]) => so.replace(form ?? "", String(sent)), text);
  const date = DATE.exec(now)?.[1];
  if (date === undefined) return null;
  const ms = Date.parse(date);
  // Compare with the result, because `Date.parse` takes 31 February for a day in March.
  const same = !Number.isNaN(ms) && new Date(ms).toUTCString().endsWith(`, ${date}`);
  return same ? ms / 1000 : null;
}

/** The token buckets of recently used hosts (oncekey/client/_budget.py). */
class Buckets {
  #budget;
  /** @type {Map<string, { tokens: number, counted: number }>} */
  #left = new Map();

  /** @param {RetryBudget} budget */
  constructor(budget) {
    this.#budget = budget;
  }

  /**
   * Add the tokens of a new request to this host.
   *
   * @param {string} host
   * @param {number} now
   */
  earn(host, now) {
    this.#put(host, this.#tokens(host, now) + this.#budget.tokensPerRequest, now);
  }

  /**
   * Take a token for one retry; return false if there is none.
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
    this.#left.delete(host); // move it to the end: the oldest is dropped first
    this.#left.set(host, { tokens: Math.min(tokens, this.#budget.tokensMax), counted: now });
    if (this.#left.size > 1024) this.#left.delete(this.#left.keys().next().value ?? "");
  }
}

// ------------------------------------------------------------------------------------ keys and intents

/**
 * Make a UUID version 7 (RFC 9562): milliseconds, then random bits. Never derived from the request:
 * two equal orders are two orders.
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

/** Remembers which request each recent key was sent with (oncekey/client/_key_placement.py). */
class SentRequests {
  /** @type {Map<string, string>} */
  #seen = new Map();

  /**
   * Whether this key was last sent with a different request.
   *
   * @param {string} name The origin and the key.
   * @param {string} print
   */
  isDifferent(name, print) {
    const before = this.#seen.get(name);
    this.#seen.delete(name); // move it to the end: the oldest is dropped first
    this.#seen.set(name, print);
    if (this.#seen.size > KEYS_MAX) this.#seen.delete(this.#seen.keys().next().value ?? "");
    return before !== undefined && before !== print;
  }
}

/**
 * Return a request's fingerprint: method, URL and type; JSON by value, forms with files part by part,
 * anything else by its bytes. When in doubt, two requests differ. It is a digest, because the text may
 * contain secrets.
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

/** Hash a piece at a time: a large file need not be in memory. @param {Blob} body */
async function printOfBytes(body) {
  const parts = [];
  for (let at = 0; at < body.size; at += PIECE_BYTES) {
    parts.push(sha256(new Uint8Array(await body.slice(at, at + PIECE_BYTES).arrayBuffer())));
  }
  return `${body.size}:${parts.join()}`;
}

/**
 * Return a form's parts in order, without the boundary, which differs each time.
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
 * Sort the names of a JSON text. Text that JavaScript would write differently (apart from blanks) is
 * left unchanged: large and long numbers, which it rounds, or duplicate names.
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
const INITIAL_STATE = [
  ...[0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19],
];

/**
 * SHA-256 in hexadecimal. The browser's own exists only on https pages.
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
  const state = Int32Array.from(INITIAL_STATE); // signed: several times faster in engines
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
  const rotate = (word, by) => (word >>> by) | (word << (32 - by));
  for (let i = 0; i < 16; i += 1) words[i] = view.getInt32(at + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const one = words[i - 15];
    const other = words[i - 2];
    const low = rotate(one, 7) ^ rotate(one, 18) ^ (one >>> 3);
    const high = rotate(other, 17) ^ rotate(other, 19) ^ (other >>> 10);
    words[i] = words[i - 16] + low + words[i - 7] + high;
  }
  /** @type {any} */
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i += 1) {
    const one = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const first = (h + one + ((e & f) ^ (~e & g)) + (ROUNDS[i] ?? 0) + words[i]) | 0;
    const other = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
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
 * Return the short hash that stands for a key in messages and logs (oncekey/_core/key.py).
 *
 * @param {string} key
 */
function shortHash(key) {
  return sha256(`15:oncekey/short/1${key.length}:${key}`).slice(0, 12);
}

/** Replace a key in a server's text by its short hash. @param {string} said @param {string} key */
function redact(said, key) {
  const alone = key.replace(/[^0-9A-Za-z]/g, "\\$&");
  return said.replace(new RegExp(`(^|[^0-9A-Za-z])${alone}(?![0-9A-Za-z])`, "g"), `$1${shortHash(key)}`);
}

// ------------------------------------------------------------------------------------ stored responses

/**
 * The stored response that settled an intent.
 *
 * @typedef {object} StoredAnswer
 * @property {number} status
 * @property {string} type Its Content-Type; empty for none.
 * @property {string | null} body In base64; null if it was too long, or dropped as the oldest of many.
 * @property {string | null} expires
 * @property {number} until Until when it is remembered, in seconds since 1970.
 * @property {string | null} print The fingerprint of its request.
 * @property {string} by
 */

const STORED_BODY_BYTES_MAX = 65_536;
/** Statuses whose responses have no body, not even an empty one. */
const NO_BODY_STATUSES = new Set([204, 205, 304]);

/**
 * Return what to store of the response that ended an intent; null for a refusal that the server did not
 * store either: then the name is free again.
 *
 * @param {DeliveryResult} ended
 * @param {RequestIdentity} asked
 * @param {string} key
 * @param {number} until
 * @returns {StoredAnswer | null}
 */
function storedAnswerOf({ answer, verdict }, { print, by }, key, until) {
  if ("error" in answer || !verdict.settled) return null;
  const { response, body } = answer;
  const { status, headers } = response;
  if (!response.ok && !isStored(headers)) return null;
  const isShort = body === null ? response.body === null : body.length <= STORED_BODY_BYTES_MAX;
  const type = headers.get("content-type") ?? "";
  const expires = headers.get("idempotency-expires");
  return { status, type, body: isShort ? base64(body) : null, expires, until, print, by };
}

/**
 * Whether the server says that it stores this response under its key.
 *
 * @param {Headers} headers
 */
function isStored(headers) {
  const says = ["idempotency-expires", "idempotency-key"].some((name) => headers.get(name) !== null);
  return says || isReplay(headers);
}

/** Whether it is a refusal: nothing was done, so another request may be. @param {StoredAnswer} kept */
function isRefusal({ status }) {
  return status >= 400 && status < 500;
}

/** @param {StoredAnswer} kept @param {RequestIdentity} asked */
function isSame({ print, by }, asked) {
  return print !== null && print === asked.print && by === asked.by;
}

/**
 * Make a response from the stored one that settled an intent.
 *
 * @param {string} key
 * @param {StoredAnswer} kept
 */
function rememberedResponse(key, { status, type, body, expires }) {
  const bytes = body === null || NO_BODY_STATUSES.has(status) ? null : bytesOf(body);
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

// ------------------------------------------------------------------------------------ intents

const INTENTS = "oncekey/intent";
const SERVER = "oncekey/server/";
const NAME_CHARS_MAX = 512;
const NOTE_CHARS_MAX = 16_384;
/** Safety margin: a key returned now is used for a while, and its retries must arrive in time. */
const MARGIN_S_MAX = 120;
const CHANGE_MIN = 0.05;
/** The most settled intents in a browser, for all accounts: the oldest are dropped, bodies before names. */
const SETTLED_MAX = 1000;
const BODIES_MAX = 64;
/** Unsettled intents are never dropped for newer ones: new ones are refused. */
const UNSETTLED_MAX = 1000;
/** How long "too-old" is reported after the server has forgotten the key. */
const TOO_OLD_S_MAX = 30 * 24 * 3600;

/**
 * The stored form of an intent.
 *
 * @typedef {object} StoredIntent
 * @property {string} [account] Absent if none was given.
 * @property {string} name
 * @property {string} key
 * @property {number} begun
 * @property {string} origin
 * @property {string} note
 * @property {StoredAnswer} [answer] Its response, if any.
 * @property {number} [settled] When it was settled, in seconds since 1970.
 * @property {boolean} [left] Its account has signed out meanwhile: do not store its response.
 * @property {boolean} [bare] It was left at a sign-out and is sent again: store its response without body.
 * @property {boolean} [shared] More than one call has its key, and each may get another response.
 *
 * @typedef {StoredIntent & { until: number, retentionS: number }} OpenIntent
 */

/** The stored intents, their keys and their responses (oncekey/client/_journal.py). */
class Intents {
  #shelfGiven;
  /** @type {Shelf | undefined} */
  #chosen;
  #shelfS;
  #retentionS;
  #account;
  #world;
  /** How many more may be begun before the next count. */
  #room = 0;

  /**
   * @param {Shelf | undefined} shelf
   * @param {number} shelfS
   * @param {number} retentionS
   * @param {string} account Empty for none.
   * @param {World} world
   */
  constructor(shelf, shelfS, retentionS, account, world) {
    this.#shelfGiven = shelf;
    this.#shelfS = shelfS;
    this.#retentionS = retentionS;
    this.#account = account;
    this.#world = world;
  }

  get #shelf() {
    return (this.#chosen ??= withTimeout(this.#shelfGiven ?? usualShelf(), this.#shelfS, this.#world));
  }

  /**
   * Return the intent of this name: the existing one, or a new one, stored with this key. If it is
   * settled and the request is the same, it has its response.
   *
   * @param {string | undefined} name Undefined: an intent that is not stored.
   * @param {string} key
   * @param {string} origin
   * @param {string} note
   * @param {RequestIdentity} [asked] Absent if only the key is wanted.
   * @returns {Promise<OpenIntent>}
   */
  async open(name, key, origin, note, asked) {
    const wall = this.#world.wall();
    const fresh = { name: name ?? "", key, begun: wall, origin, note };
    const retentionS = this.#retentionS;
    if (name === undefined) return { ...fresh, until: wall + retentionS, retentionS };
    validateIntent(name, note);
    const owned = this.#account ? { account: this.#account, ...fresh } : fresh;
    const intent = await requireStorage(async () => {
      const found = await this.#change(name, (it) => reopen(it, owned, asked, wall));
      if (found.key === key && !(await this.#hasRoom())) {
        await this.#change(name, (it) => (it?.key === key ? undefined : it));
        throw new OncekeyError("no-storage", FULL);
      }
      return this.#withDates(found);
    });
    const { answer } = intent;
    if (answer && intent.settled !== undefined) {
      if (asked ? !isSame(answer, asked) : wall >= intent.until) throw settledError(name, answer);
    } else if (wall >= intent.until) throw tooOldError(intent);
    return intent;
  }

  /**
   * Free this name.
   *
   * @param {string} name
   * @returns {Promise<Intent | null>}
   */
  async begin(name) {
    validateIntent(name);
    return requireStorage(async () => {
      /** @type {any} */
      let before;
      await this.#change(name, (it) => {
        before = it;
        return undefined;
      });
      return isIntent(before) && before.settled === undefined ? toIntent(await this.#withDates(before)) : null;
    });
  }

  /**
   * Store the response if it is final, or free the name if the intent may start anew.
   *
   * @param {OpenIntent} begun
   * @param {boolean} settle False: the caller will settle it.
   * @param {DeliveryResult} ended
   * @param {RequestIdentity} asked
   * @returns {Promise<boolean>} Whether the intent is done.
   */
  async close({ name, key, retentionS }, settle, ended, asked) {
    if (!ended.verdict.settled) return false;
    const wall = this.#world.wall();
    const saidS = "error" in ended.answer ? null : this.#statedRetentionS(ended.answer);
    // A shorter retention of the server's other routes does not apply to this one.
    const until = wall + (saidS ?? Math.max(retentionS, this.#retentionS));
    const answer = storedAnswerOf(ended, asked, key, until);
    let isOpen = false;
    /** @param {StoredAnswer | null} kept */
    const write = (kept) =>
      this.#change(name, (it) => {
        // Another call with the same key may still succeed, so the key must stay.
        isOpen = it?.key === key && !kept && it.shared === true && it.settled === undefined;
        return it?.key === key && !isOpen ? close(it, kept, settle, wall) : it;
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
      // Another tab may have started it anew: keep that one.
      if (key !== undefined && it?.key !== key) return it;
      return it?.settled === undefined ? close(it, it?.answer ?? null, true, wall) : it;
    });
    this.#room = 0;
  }

  /**
   * @param {boolean} everyone
   * @returns {Promise<Intent[]>}
   */
  async signOut(everyone) {
    const found = (await this.#shelf.all(everyone ? INTENTS : placeOf(this.#account))).filter(isIntent);
    const left = await Promise.all(found.map((each) => this.#shelf.update(at(each), signOut)));
    const unsettled = left.map((it, index) => (it === undefined ? undefined : found[index]));
    return this.#toIntents(unsettled.filter((it) => it !== undefined));
  }

  /** @returns {Promise<Intent[]>} */
  async list() {
    const found = await this.#shelf.all(placeOf(this.#account));
    // Without an account, the owner of intents left at a sign-out is unknown.
    const mine = (/** @type {any} */ it) => isIntent(it) && !(it.left && !it.account);
    return this.#toIntents(found.filter((it) => mine(it) && it.settled === undefined));
  }

  /**
   * Record how long this server remembers keys, as every first response states. Its routes may differ:
   * the shortest counts.
   *
   * @param {string} origin
   * @param {Answer} answer
   */
  async learn(origin, answer) {
    if ("error" in answer || isReplay(answer.response.headers)) return;
    const retentionS = this.#statedRetentionS(answer);
    if (retentionS === null) return;
    const [known] = await this.#shelf.all(`${SERVER}${origin}/`);
    if (known?.retentionS * (1 - CHANGE_MIN) <= retentionS) return;
    const shorter = (/** @type {any} */ before) =>
      before?.retentionS < retentionS ? before : { retentionS };
    await this.#shelf.update(`${SERVER}${origin}/`, shorter);
  }

  /**
   * Return how long the server says it remembers this response; null if it does not say, or if its time
   * is over by its clock (ours, if it shows none).
   *
   * @param {{ response: Response }} answer
   */
  #statedRetentionS({ response: { headers } }) {
    const until = parseDate((headers.get("idempotency-expires") ?? "").trim());
    const leftS = until === null ? 0 : until - (dateOf(headers) ?? this.#world.wall());
    return leftS > 0 ? leftS : null;
  }

  /** @param {string} name @param {(it: any) => any} change */
  #change(name, change) {
    return this.#shelf.update(placeOf(this.#account) + name, change);
  }

  /** @param {any[]} found @returns {Promise<Intent[]>} */
  async #toIntents(found) {
    const intents = await Promise.all(found.map(async (each) => toIntent(await this.#withDates(each))));
    return intents.sort((one, other) => one.begun - other.begun);
  }

  async #hasRoom() {
    if (this.#room <= 0) this.#room = UNSETTLED_MAX + 1 - (await this.#tidy());
    this.#room -= 1;
    return this.#room >= 0;
  }

  /** Drop intents that are too many or too old. Return how many are not settled. */
  async #tidy() {
    const wall = this.#world.wall();
    const all = (await this.#shelf.all(INTENTS)).filter(isIntent);
    const settled = all.filter((it) => it.settled !== undefined);
    settled.sort((one, other) => other.settled - one.settled);
    const over = settled.filter((it, index) => index >= SETTLED_MAX || wall >= it.answer.until);
    const unsettled = all.filter((it) => it.settled === undefined);
    const old = unsettled.filter((it) => wall - it.begun > this.#retentionS + TOO_OLD_S_MAX);
    for (const it of [...over, ...old]) await this.#shelf.update(at(it), dropIf(it));
    for (const it of settled.slice(BODIES_MAX)) {
      if (it.answer.body !== null && !over.includes(it)) await this.#shelf.update(at(it), dropBody(it));
    }
    return unsettled.length - old.length;
  }

  /** @param {StoredIntent} intent @returns {Promise<OpenIntent>} */
  async #withDates(intent) {
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

/** Return the prefix of an account's intents. @param {string} account */
function placeOf(account) {
  return account ? `${INTENTS}-of/${account}/` : `${INTENTS}/`;
}

/** @param {StoredIntent} intent */
function at({ account = "", name }) {
  return placeOf(account) + name;
}

/** @param {string} name @param {string} [note] */
function validateIntent(name, note = "") {
  if (name && name.length <= NAME_CHARS_MAX && note.length <= NOTE_CHARS_MAX) return;
  throw new TypeError(
    `an intent has a name of 1 to ${NAME_CHARS_MAX} characters, and a note of at most ` +
      `${NOTE_CHARS_MAX}`,
  );
}

// Changes of stored intents. Each runs within one atomic update.

/**
 * @param {any} it
 * @param {StoredIntent} fresh
 * @param {RequestIdentity | undefined} asked
 * @param {number} wall
 */
function reopen(it, fresh, asked, wall) {
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
 * @param {StoredAnswer | null} answer
 * @param {boolean} settle
 * @param {number} wall
 */
function close(it, answer, settle, wall) {
  if (it === undefined || it.settled !== undefined) return it;
  if (!answer || it.left) return settle ? undefined : it;
  const kept = it.bare ? { ...answer, body: null } : answer;
  return settle ? { ...it, note: "", answer: kept, settled: wall } : { ...it, answer: kept };
}

/** @param {any} it */
function signOut(it) {
  if (!isIntent(it) || it.settled !== undefined) return undefined;
  const { answer, ...stays } = it;
  return { ...stays, left: true, note: it.account ? it.note : "" };
}

/** @param {StoredIntent} then */
function dropIf({ key, settled }) {
  return (/** @type {any} */ it) => (it?.key === key && it.settled === settled ? undefined : it);
}

/** @param {StoredIntent} then */
function dropBody({ key }) {
  return (/** @type {any} */ it) =>
    it?.key === key && it.answer ? { ...it, answer: { ...it.answer, body: null } } : it;
}

/** @param {OpenIntent} intent @returns {Intent} */
function toIntent({ name, key, begun, until, origin, note }) {
  return { name, key, begun, until, origin, note };
}

const FULL =
  `Nothing was sent: ${UNSETTLED_MAX} intents are not settled in this browser. Send them again under ` +
  "their names (unsettled), or settle those whose outcome you know.";

/** @param {string} name @param {StoredAnswer} answer */
function settledError(name, { status }) {
  return new OncekeyError(
    "settled",
    `The intent ${name} is settled: it was answered ${status}, for another request or another login, ` +
      `so nothing was sent. To do this too, call begin(${JSON.stringify(name)}) first, or use another ` +
      "name.",
  );
}

/** @param {OpenIntent} intent */
function tooOldError({ name, key, begun, until }) {
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
 * Log errors of work after the response has come: they must not hide it.
 *
 * @param {() => Promise<void>} work
 */
async function logErrors(work) {
  try {
    await work();
  } catch (error) {
    console.error("oncekey: the response has arrived, but its intent could not be updated:", error);
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
async function requireStorage(ask) {
  try {
    return await ask();
  } catch (cause) {
    if (cause instanceof OncekeyError) throw cause;
    const why = cause instanceof Error ? cause.message || cause.name : String(cause);
    throw new OncekeyError(
      "no-storage",
      `The key cannot be stored, so nothing was sent: ${why}. Allow this page to store data, or pass ` +
        "shelf: memoryShelf() and accept that a reload forgets keys.",
      { cause },
    );
  }
}

// ------------------------------------------------------------------------------------ storage

/**
 * Stored values by name, shared by all tabs of an origin.
 *
 * @typedef {object} Shelf
 * @property {(name: string, change: (before: any) => any) => Promise<any>} update Atomically replace a
 *   value by what `change` makes of it (undefined for none). Returns the new value.
 * @property {(prefix: string) => Promise<any[]>} all The values whose names have this prefix.
 */

/**
 * Use IndexedDB, or localStorage if there is none.
 *
 * In this order, because one tab may see another tab's localStorage writes late, even under a lock: both
 * could make a key for one intent. (Of 900 counts under a Web Lock Chromium kept 702.) IndexedDB's
 * transactions prevent that.
 *
 * The choice must not change between page loads, or an intent would get two keys: so it depends on what
 * the browser has, not on whether a write succeeds now.
 *
 * @returns {Shelf}
 */
export function usualShelf() {
  const database = tryGet(() => globalThis.indexedDB);
  if (database) return databaseShelf(database);
  const storage = tryGet(() => globalThis.localStorage);
  if (storage) return storageShelf(storage, globalThis.navigator?.locks);
  throw new Error("this browser has neither IndexedDB nor localStorage for this page");
}

/**
 * Return a browser feature, or undefined if this page may not use it: in a sandboxed frame reading it throws.
 *
 * @template T
 * @param {() => T} ask
 * @returns {T | undefined}
 */
function tryGet(ask) {
  try {
    return ask();
  } catch {
    return undefined;
  }
}

/**
 * Add a timeout to a shelf: a browser's storage may hang without an error. It does not fall back to
 * another shelf, for the reason above. A late write is found by the next read.
 *
 * @param {Shelf} shelf
 * @param {number} seconds
 * @param {World} world
 * @returns {Shelf}
 */
function withTimeout(shelf, seconds, world) {
  /**
   * @template T
   * @param {Promise<T>} asked
   * @returns {Promise<T>}
   */
  const limit = async (asked) => {
    const done = new AbortController();
    const late = world.sleep(seconds, done.signal).then(() => {
      throw new Error(`the storage for keys did not answer within ${seconds} s`);
    });
    try {
      return await Promise.race([asked, late]);
    } finally {
      done.abort();
    }
  };
  return {
    update: (name, change) => limit(shelf.update(name, change)),
    all: (prefix) => limit(shelf.all(prefix)),
  };
}

/**
 * Store in localStorage: safe for one tab. Two tabs that begin an intent at once may make two keys.
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
 * Store in IndexedDB: on disk before it resolves (`durability: "strict"`), and shared by all tabs.
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
        request.result.onclose = forget; // for example when the user clears the site's data
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
 * Store in memory, for tests and for pages that may store nothing: a reload forgets it.
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
 * The environment: clock, randomness, network.
 *
 * @typedef {object} World
 * @property {(request: Request) => Promise<Response>} fetch
 * @property {() => number} now Monotonic seconds.
 * @property {() => number} wall Seconds since 1970.
 * @property {(seconds: number, signal?: AbortSignal | null) => Promise<void>} sleep Throws when aborted.
 * @property {() => number} chance In [0, 1).
 * @property {(count: number) => Uint8Array} bytes
 * @property {() => boolean} online
 * @property {(signal: AbortSignal) => Promise<void>} back Resolves when the network is back.
 */

/** A timer set for longer fires at once. */
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
 * @param {(resolve: () => void) => () => void} begin Returns how to end it.
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
