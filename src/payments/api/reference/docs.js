// Every route of the OpenAPI document, as a form that can be sent.
"use strict";

const TOLD = ["request-id", "original-request", "idempotency-key", "idempotent-replayed", "stripe-should-retry"];

// Not randomUUID(), which only pages have that came by https, or from this machine.
function random() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function element(name, attributes = {}, ...inner) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...inner);
  return made;
}

function resolve(api, schema) {
  return schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
}

// A parameter that is an object is written with brackets, one line for each of its own.
function fieldsOf(api, schema, required, prefix = "") {
  const found = [];
  for (const [name, given] of Object.entries(resolve(api, schema).properties ?? {})) {
    if (name === "expand") continue;
    const path = prefix ? `${prefix}[${name}]` : name;
    const kinds = (given.anyOf ?? [given]).map((kind) => resolve(api, kind));
    const kind = kinds.find((each) => each.type !== "null") ?? given;
    const needed = required && (resolve(api, schema).required ?? []).includes(name);
    const nested = kinds.find((each) => each.properties);
    const plain = kinds.find((each) => each.type && !["object", "null"].includes(each.type) || each.enum);
    if (plain || !nested) found.push({ path: kind.additionalProperties ? `${path}[name]` : path, kind: plain ?? kind, needed, examples: given.examples });
    if (nested) found.push(...fieldsOf(api, nested, needed && !plain, path));
  }
  return found;
}

function explain(kind) {
  if (kind.const) return `always ${kind.const}`;
  if (kind.enum) return kind.enum.length > 12 ? `one of ${kind.enum.length}, such as ${kind.enum[0]}` : kind.enum.join(", ");
  const limits = [];
  if (kind.minimum !== undefined) limits.push(`from ${kind.minimum}`);
  if (kind.maximum !== undefined) limits.push(`to ${kind.maximum}`);
  if (kind.maxLength !== undefined) limits.push(`at most ${kind.maxLength} characters`);
  return [kind.type ?? "", ...limits].join(" ");
}

function row(form, field, place) {
  const id = `field-${random()}`;
  const input = element("input", { id, name: field.path, "data-place": place, autocomplete: "off" });
  if (field.examples) input.value = field.examples[0];
  const label = element("label", { for: id }, element("code", {}, field.path));
  const hint = element("small", {}, `${field.needed ? "required, " : ""}${explain(field.kind)}`);
  form.append(element("tr", {}, element("th", { scope: "row" }, label), element("td", {}, input, hint)));
}

function route(api, path, method, operation) {
  const table = element("table");
  const body = operation.requestBody?.content["application/x-www-form-urlencoded"]?.schema;
  for (const each of operation.parameters ?? []) {
    if (each.in === "header" || each.name.startsWith("expand")) continue;
    row(table, { path: each.name, kind: resolve(api, each.schema), needed: each.required }, each.in);
  }
  if (body) for (const field of fieldsOf(api, body, true)) row(table, field, "body");
  const again = element("button", { type: "button", hidden: "" }, "Send again with the same key");
  const answer = element("pre", { hidden: "", "aria-live": "polite" });
  const form = element("form", {}, table, element("button", { type: "submit" }, "Send"), again, answer);
  let sent = null;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sent = request(form, path, method);
    send(sent, answer);
    again.hidden = method !== "post";
  });
  again.addEventListener("click", () => send(sent, answer));
  const title = element("summary", {}, element("span", { class: "method" }, method.toUpperCase()), element("code", {}, path));
  const says = element("span", { class: "hint" }, ` ${operation.summary ?? ""}`);
  title.append(says);
  return element("details", {}, title, form);
}

function request(form, path, method) {
  const values = [...form.querySelectorAll("input")].filter((input) => input.value !== "");
  const of = (place) => values.filter((input) => input.dataset.place === place).map((input) => [input.name, input.value]);
  for (const [name, value] of of("path")) path = path.replace(`{${name}}`, encodeURIComponent(value));
  const query = new URLSearchParams(of("query")).toString();
  const headers = { Authorization: `Bearer ${document.getElementById("key").value}` };
  const options = { method: method.toUpperCase(), headers };
  if (method === "post") {
    headers["Idempotency-Key"] = random();
    options.body = new URLSearchParams(of("body"));
  }
  return [query ? `${path}?${query}` : path, options];
}

async function send([url, options], answer) {
  answer.hidden = false;
  answer.textContent = "…";
  try {
    const response = await fetch(url, options);
    const lines = TOLD.filter((name) => response.headers.has(name)).map((name) => `${name}: ${response.headers.get(name)}`);
    const body = JSON.stringify(await response.json(), null, 2);
    const status = element("strong", { class: response.ok ? "good" : "bad" }, String(response.status));
    answer.replaceChildren(status, `\n${lines.join("\n")}\n\n${body}`);
  } catch (error) {
    answer.textContent = `No answer: ${error.message}. Send it again with the same key.`;
  }
}

async function show() {
  const api = await (await fetch("/openapi.json")).json();
  const parts = new Map();
  for (const [path, operations] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const tag = operation.tags?.[0] ?? "other";
      if (!parts.has(tag)) parts.set(tag, []);
      parts.get(tag).push(route(api, path, method, operation));
    }
  }
  const main = document.getElementById("routes");
  main.replaceChildren();
  for (const [tag, routes] of parts) {
    document.getElementById("parts").append(element("a", { href: `#${tag}` }, tag.replaceAll("_", " ")));
    main.append(element("h2", { id: tag }, tag.replaceAll("_", " ")), ...routes);
  }
}

show().catch((error) => {
  document.getElementById("routes").textContent = `The document could not be read: ${error.message}`;
});
