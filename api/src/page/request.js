// From the settings of a column to the request, and to the same request for other tools.

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty"];

/** The body of a chat request. Throws if a field cannot be read. */
export const body = (fields, messages, stream) => {
  const system = fields.system.value.trim();
  const made = {
    model: fields.model.value || undefined,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
  };
  for (const name of NUMBERS) {
    if (fields[name].value !== "") made[name] = Number(fields[name].value);
  }
  const grammar = fields.grammar.value;
  if (fields.format.value === "regex" && grammar.trim()) made.regex = grammar.trim();
  if (fields.format.value === "schema" && grammar.trim()) {
    let schema;
    try {
      schema = JSON.parse(grammar);
    } catch (error) {
      throw new Error(`The JSON Schema is no JSON: ${error.message}`);
    }
    made.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  if (fields.logprobs.checked) Object.assign(made, { logprobs: true, top_logprobs: 8 });
  if (stream) Object.assign(made, { stream: true, stream_options: { include_usage: true } });
  return made;
};

const base = () => new URL("v1", location.href.replace(/[#?].*/, "")).href;

export const curl = (made, hasKey) => {
  const quoted = JSON.stringify(made, null, 2).replaceAll("'", "'\\''");
  const key = hasKey ? " \\\n  -H \"authorization: Bearer $HEARTH_API_KEY\"" : "";
  return `curl ${base()}/chat/completions -H 'content-type: application/json'${key} \\\n  -d '${quoted}'`;
};

/** JSON in Python's words. */
const python = (value, indent = "    ") => {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((item) => deeper + python(item, deeper))
    : Object.entries(value).map(([name, item]) => `${deeper}${JSON.stringify(name)}: ${python(item, deeper)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join(",\n")},\n${indent}${close}` : open + close;
};

/** The parameters that OpenAI's package does not have. */
const EXTRA = ["top_k", "min_p", "regex"];

export const pythonProgram = (made, hasKey) => {
  const own = Object.entries(made).filter(([name, value]) => value !== undefined && !EXTRA.includes(name));
  const extra = Object.fromEntries(Object.entries(made).filter(([name]) => EXTRA.includes(name)));
  const lines = own.map(([name, value]) => `    ${name}=${python(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${python(extra)},`);
  const key = hasKey ? "os.environ[\"HEARTH_API_KEY\"]" : "\"none\"";
  return `${hasKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(base())}, api_key=${key})
answer = client.chat.completions.create(
${lines.join("\n")}
)
print(answer.choices[0].message.content)
`;
};
