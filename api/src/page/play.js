// The playground: one or two chats that get the same messages.

import { $, make } from "./dom.js";
import { events, refusal } from "./feed.js";
import { headers as keyHeaders, keys } from "./keys.js";
import { body, curl, pythonProgram } from "./request.js";
import { TokenWriter, enableTokens } from "./tokens.js";

const EXAMPLES = {
  schema: JSON.stringify({
    type: "object",
    properties: { name: { type: "string" }, year: { type: "integer", minimum: 1900, maximum: 2100 }, tags: { type: "array", items: { enum: ["calm", "warm", "bright"] }, maxItems: 2 } },
    required: ["name", "year", "tags"], additionalProperties: false,
  }, null, 2),
  regex: "(yes|no), because [a-z ]{10,60}\\.",
};

let context;

/** A chat with settings of its own. */
class Chat {
  constructor(title) {
    this.element = $("column").content.firstElementChild.cloneNode(true);
    this.list = this.element.querySelector(".messages");
    this.messages = [];
    this.title = title;
    const named = this.element.querySelectorAll("[name]");
    this.fields = Object.fromEntries([...named].map((field) => [field.name, field]));
    this.fields.format.addEventListener("change", () => this.chooseFormat());
    this.fields.curl.addEventListener("click", () => this.copy(curl));
    this.fields.python.addEventListener("click", () => this.copy(pythonProgram));
    this.element.addEventListener("input", () => this.summarise());
    enableTokens(this.list);
    this.summarise();
    this.clear();
  }

  setModels(models) {
    const chosen = this.fields.model.value;
    this.fields.model.replaceChildren(...models.map((id) => make("option", { value: id }, id)));
    if (models.includes(chosen)) this.fields.model.value = chosen;
    this.summarise();
  }

  chooseFormat() {
    const format = this.fields.format.value;
    const label = this.element.querySelector(".grammar");
    label.hidden = !format;
    label.firstElementChild.textContent = format === "regex" ? "Regular expression" : "JSON Schema";
    if (format) this.fields.grammar.value = EXAMPLES[format];
  }

  summarise() {
    this.element.querySelector(".title").textContent = this.title;
    const { model, temperature, format } = this.fields;
    const facts = [model.value, temperature.value && `temperature ${temperature.value}`,
      format.value && format.selectedOptions[0].textContent.replace(/^an? /, "")];
    this.element.querySelector(".summary").textContent = facts.filter(Boolean).join(" · ");
  }

  clear() {
    this.messages = [];
    this.list.replaceChildren(make("p", { className: "empty quiet" },
      "Answers appear here as the model writes them. Click a token to see what else it could have been."));
  }

  async copy(as) {
    const said = this.element.querySelector(".copied");
    try {
      const messages = this.messages.length ? this.messages.filter((message, index) => index < this.messages.length - 1
        || message.role === "user") : [{ role: "user", content: $("message").value || "Hello!" }];
      await navigator.clipboard.writeText(as(body(this.fields, messages, false), Boolean(keys.api)));
      said.textContent = "Copied.";
    } catch (error) {
      said.textContent = error.message;
    }
    setTimeout(() => { said.textContent = ""; }, 4000);
  }

  say(role, ...children) {
    this.list.querySelector(".empty")?.remove();
    const message = make("div", { className: `message ${role}` }, ...children);
    this.list.append(message);
    this.list.scrollTop = this.list.scrollHeight;
    return message;
  }

  /** Sends the chat so far with `text`, and shows the answer as it comes. */
  async ask(text, signal) {
    this.messages.push({ role: "user", content: text });
    this.say("user", text);
    const answer = make("div", { className: "text" });
    const facts = make("p", { className: "facts quiet" }, "…");
    const message = this.say("assistant", answer, facts);
    let said = "";
    try {
      const begin = performance.now();
      const result = await this.stream(answer, signal, begin, facts);
      said = result.text;
      facts.textContent = result.facts;
      if (!said && !result.reasoning) answer.append(make("span", { className: "quiet" }, "(an empty answer)"));
    } catch (error) {
      const isStop = signal.aborted;
      said = answer.textContent;
      facts.textContent = isStop ? "stopped" : "";
      message.classList.toggle("stopped", isStop);
      if (!isStop) facts.append(make("span", { className: "error" }, error.message));
    }
    if (said) this.messages.push({ role: "assistant", content: said });
    else this.messages.pop();
    this.list.scrollTop = this.list.scrollHeight;
  }

  async stream(answer, signal, begin, facts) {
    const headers = { "content-type": "application/json", ...keyHeaders("api") };
    const made = JSON.stringify(body(this.fields, this.messages, true));
    const response = await fetch("v1/chat/completions", { method: "POST", headers, body: made, signal });
    if (response.status === 401) {
      const why = await refusal(response);
      context.askForKeys(why);
      throw new Error(keys.api ? `The server refused the key: ${why}` : why);
    }
    if (!response.ok) throw new Error(await refusal(response));
    let writer = new TokenWriter(answer);
    const tokens = { all: 0, forced: 0 };
    let [text, reasoning, first, usage, finish] = ["", null, null, null, ""];
    for await (const [, data] of events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message ?? chunk.error);
      usage = chunk.usage ?? usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const { content, reasoning_content: thought } = choice.delta;
      if (content || thought) first ??= performance.now();
      if (thought && !reasoning) {
        reasoning = make("details", { className: "reasoning", open: true }, make("summary", {}, "Reasoning"), make("div"));
        answer.before(reasoning);
        writer = new TokenWriter(reasoning.lastChild);
      } else if (content && reasoning && writer.parent !== answer) writer = new TokenWriter(answer);
      text += content ?? "";
      const list = choice.logprobs?.content;
      if (list?.length) {
        for (const token of list) {
          writer.push(token);
          tokens.all += 1;
          tokens.forced += token.forced ? 1 : 0;
        }
      } else writer.parent.append(content ?? thought ?? "");
      this.follow();
      if (first) facts.textContent = `first token after ${Math.round(first - begin)} ms`;
    }
    const seconds = (performance.now() - (first ?? begin)) / 1000;
    const parts = first ? [`first token after ${Math.round(first - begin)} ms`] : [];
    if (usage) {
      parts.push(`${usage.completion_tokens} tokens`);
      if (usage.completion_tokens > 1) parts.push(`${((usage.completion_tokens - 1) / Math.max(seconds, 1e-3)).toFixed(1)} tokens/s`);
      const cached = usage.prompt_tokens_details?.cached_tokens;
      if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
    }
    if (tokens.forced) parts.push(`${tokens.forced} forced`);
    if (finish === "length") parts.push("cut at the limit");
    return { text, reasoning, facts: parts.join(" · ") };
  }

  /** Keeps the end in view, unless the reader has scrolled up. */
  follow() {
    const { scrollTop, scrollHeight, clientHeight } = this.list;
    if (scrollHeight - scrollTop - clientHeight < 120) this.list.scrollTop = scrollHeight;
  }
}

export const startPlayground = (given) => {
  context = given;
  const chats = [new Chat("Settings")];
  let models = [];
  let running = null;
  $("columns").append(chats[0].element);

  const busy = (is) => {
    $("send").hidden = is;
    $("stop").hidden = !is;
  };

  const send = async () => {
    const text = $("message").value.trim();
    if (!text || running) return;
    $("message").value = "";
    running = new AbortController();
    busy(true);
    await Promise.all(chats.map((chat) => chat.ask(text, running.signal)));
    running = null;
    busy(false);
    $("message").focus();
  };

  const stop = () => running?.abort();

  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("message").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) stop();
  });
  $("stop").addEventListener("click", stop);
  $("clear").addEventListener("click", () => {
    stop();
    chats.forEach((chat) => chat.clear());
  });
  $("compare").addEventListener("click", () => {
    if (running) return;
    if (chats.length === 1) {
      const other = new Chat("B");
      other.setModels(models);
      chats.push(other);
      $("columns").append(other.element);
      other.element.querySelector("details").open = true;
    } else chats.pop().element.remove();
    const both = chats.length === 2;
    chats[0].title = both ? "A" : "Settings";
    chats[0].summarise();
    $("columns").classList.toggle("two", both);
    $("compare").setAttribute("aria-pressed", both);
  });

  const refresh = async () => {
    const response = await fetch("v1/models", { headers: keyHeaders("api") }).catch(() => null);
    if (!response?.ok) return;
    models = (await response.json()).data.map(({ id }) => id);
    chats.forEach((chat) => chat.setModels(models));
  };
  refresh();
  return { refresh };
};
