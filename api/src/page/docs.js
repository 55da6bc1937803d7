// The description of the API, grouped, with an example of each group that can be sent.

import { $, make } from "./dom.js";
import { headers, keep, keys } from "./keys.js";

const kind = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).filter((name) => name !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return "list of " + kind(schema.items ?? {});
  return schema.type ?? "anything";
};

const fields = (schema) => {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) =>
    make("tr", {},
      make("td", { className: required.has(name) ? "required" : "" }, make("code", {}, name)),
      make("td", {}, kind(field)),
      make("td", {}, (required.has(name) ? "required. " : "") + (field.description ?? ""))));
  return make("table", {}, make("tbody", {}, ...rows));
};

const title = (path, method) => [make("span", { className: "method" }, method.toUpperCase()), make("code", {}, path)];

const KEYS = { api: "the API key", admin: "the administrator's key" };

const route = (path, method, operation, schemas) => {
  const made = make("details", {}, make("summary", {}, ...title(path, method), ` \u2014 ${operation.summary}`));
  const key = KEYS[operation["x-hearth-key"]];
  if (key) made.append(make("p", { className: "quiet" }, `With ${key}, where the server has one.`));
  const body = operation.requestBody?.content["application/json"].schema;
  if (body) made.append(make("h4", {}, "Body"), fields(schemas[kind(body)]));
  for (const parameter of operation.parameters ?? []) {
    made.append(make("p", {}, make("code", {}, parameter.name), ` (${parameter.in}): ${kind(parameter.schema)}`));
  }
  for (const [type, { schema }] of Object.entries(operation.responses["200"].content)) {
    const whole = schemas[kind(schema)] ?? schema;
    made.append(make("h4", {}, "Answer: ", make("code", {}, type)),
      whole.properties ? fields(whole) : make("p", {}, kind(whole)));
  }
  return made;
};

/** Sends the text of `area` and shows the answer while it comes. */
const send = async (path, key, area, output, signal) => {
  output.textContent = "";
  const response = await fetch(path.slice(1), {
    method: "POST",
    headers: { "content-type": "application/json", ...headers(key) },
    body: area.value,
    signal,
  });
  const answer = make("span");
  output.append(`${response.status} ${response.statusText}\n`, answer);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    answer.append(value);
  }
  try {
    answer.textContent = JSON.stringify(JSON.parse(answer.textContent), null, 2);
  } catch {
    // A stream stays as it came.
  }
};

const example = (path, operation, model) => {
  const { example: given } = operation.requestBody.content["application/json"];
  const body = "model" in given && model ? { ...given, model } : given;
  const text = JSON.stringify(body, null, 2);
  const area = make("textarea", { value: text, rows: text.split("\n").length, spellcheck: false, ariaLabel: `Body for ${path}` });
  const output = make("pre", { tabIndex: 0, role: "log", ariaLabel: "Answer" });
  const [go, stop] = [make("button", {}, "Send"), make("button", { type: "button", hidden: true }, "Stop")];
  let sending = new AbortController();
  stop.addEventListener("click", () => sending.abort());
  const form = make("form", { className: "example" },
    make("span", {}, ...title(path, "post")), area, go, stop, output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    sending = new AbortController();
    [go.disabled, stop.hidden] = [true, false];
    try {
      await send(path, operation["x-hearth-key"], area, output, sending.signal);
    } catch (error) {
      output.append(sending.signal.aborted ? "\n(stopped)" : `\n${error.message}`);
    }
    [go.disabled, stop.hidden] = [false, true];
  });
  return form;
};

/** The name of the served model; none where it is not told. */
const served = async () => {
  try {
    const response = await fetch("v1/models", { headers: headers("api") });
    return (await response.json()).data[0].id;
  } catch {
    return undefined;
  }
};

const show = async () => {
  const [api, model] = await Promise.all([fetch("openapi.json").then((answer) => answer.json()), served()]);
  const all = Object.entries(api.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({ path, method, operation })));
  const groups = api.tags.map(({ name, description }) => {
    const own = all.filter(({ operation }) => operation.tags[0] === name);
    const shown = own.find(({ operation }) => operation.requestBody?.content["application/json"].example);
    return make("section", { id: name },
      make("h2", {}, name), make("p", {}, description),
      ...(shown ? [example(shown.path, shown.operation, model)] : []),
      ...own.map(({ path, method, operation }) => route(path, method, operation, api.components.schemas)));
  });
  $("routes").replaceChildren(...groups);
  $("groups").replaceChildren(...groups.map(({ id }) => make("a", { href: `#${encodeURIComponent(id)}` }, id)));
};

for (const name of ["api", "admin"]) {
  const field = $(`${name}-key`);
  field.value = keys[name];
  field.addEventListener("change", () => keep(name, field.value));
}
$("keys").addEventListener("submit", (event) => event.preventDefault());
show().catch((error) => $("routes").replaceChildren(`The description cannot be shown: ${error.message}`));
