// Stripe's client for Node, asked by lines of JSON on standard input and answering by lines.
//
//   [command, argument]  →  {"ok": …} or {"failed": …}
//
// Started with: the folder of the packages, the key of the API, its port.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [modules, apiKey, port] = process.argv.slice(2);
const imported = createRequire(`${modules}/`)("stripe");
const Stripe = imported.default ?? imported;
const stripe = new Stripe(apiKey, { host: "127.0.0.1", port, protocol: "http", telemetry: false });

// "payment_intents.create" as Node spells it: stripe.paymentIntents.create
function method(name) {
  const camel = (word) => word.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
  const words = name.replace(/\.delete$/, ".del").split(".").map(camel);
  const last = words.pop();
  const owner = words.reduce((object, word) => object[word], stripe);
  return owner[last].bind(owner);
}

const commands = {
  async ask({ name, ids, params, options }) {
    const answer = await method(name)(...ids, params, options);
    return { object: answer, headers: answer.lastResponse.headers };
  },

  async pages({ name, params }) {
    const found = [];
    for await (const each of method(name)(params)) found.push(each.id);
    return found;
  },

  event({ payload, header, secret }) {
    return stripe.webhooks.constructEvent(payload, header, secret);
  },
};

function told(error) {
  return {
    kind: error.constructor.name.replace(/^Stripe/, ""),
    message: error.message,
    status: error.statusCode ?? null,
    code: error.code ?? null,
    decline_code: error.decline_code ?? null,
    param: error.param ?? null,
    headers: error.headers ?? {},
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const [command, argument] = JSON.parse(line);
  let answer;
  try {
    answer = { ok: await commands[command](argument) };
  } catch (error) {
    answer = { failed: told(error) };
  }
  console.log(JSON.stringify(answer));
}
