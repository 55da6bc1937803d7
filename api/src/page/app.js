// The page: its two views, the keys, and the connection.

import { $, text } from "./dom.js";
import { watch } from "./feed.js";
import { asked, keep, keys } from "./keys.js";
import { showHello, showSnapshot, showTree } from "./live.js";
import { startPlayground } from "./play.js";

const VIEWS = ["live", "play"];

export const notice = (message) => {
  const element = $("notice");
  element.hidden = !message;
  element.textContent = message ?? "";
};

const state = (name, label) => {
  $("state").className = name;
  text("state-text", label);
};

const show = (view) => {
  for (const name of VIEWS) {
    const isIt = name === view;
    $(name).hidden = !isIt;
    const tab = $(`tab-${name}`);
    tab.setAttribute("aria-selected", isIt);
    tab.tabIndex = isIt ? 0 : -1;
  }
  // No element has this id, so that the browser scrolls to none.
  if (location.hash !== `#/${view}`) history.replaceState(null, "", `#/${view}`);
  connect();
};

for (const name of VIEWS) {
  $(`tab-${name}`).addEventListener("click", () => show(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = VIEWS[1 - VIEWS.indexOf(name)];
    show(other);
    $(`tab-${other}`).focus();
  });
}

const KEYS = ["api", "admin"];

/** Says of each key what the server says to it, and puts the cursor into the first field that lacks something. */
const tellKeys = async () => {
  const told = await Promise.all(KEYS.map(asked));
  for (const [at, name] of KEYS.entries()) {
    const [state, sentence] = told[at];
    $(`${name}-key-state`).className = state;
    text(`${name}-key-state`, sentence);
    $(`${name}-key`).setAttribute("aria-invalid", state === "wrong" || state === "needed");
  }
  const first = KEYS.find((name) => $(`${name}-key`).ariaInvalid === "true");
  const isTyping = KEYS.some((name) => $(`${name}-key`).value !== keys[name]);
  if (first && !isTyping) $(`${first}-key`).focus();
};

const askForKeys = (why) => {
  $("api-key").value = keys.api;
  $("admin-key").value = keys.admin;
  text("keys-why", why ?? "");
  if (!$("keys").open) $("keys").showModal();
  tellKeys();
};

$("keys-open").addEventListener("click", () => askForKeys());
$("keys-cancel").addEventListener("click", () => $("keys").close());
// The dialog's own event, `close`, comes later: a dialog that was opened again by then has lost what was typed.
$("keys-form").addEventListener("submit", () => {
  for (const name of KEYS) keep(name, $(`${name}-key`).value);
  notice();
  connect();
  playground.refresh();
});

let connection = new AbortController();

/** Watches while the live view is seen. A hidden page costs the server nothing. */
const connect = () => {
  connection.abort();
  connection = new AbortController();
  const { signal } = connection;
  if (document.hidden) return;
  if ($("live").hidden) {
    state("", "not watching");
    return;
  }
  const key = keys.admin || keys.api;
  const isCurrent = (act) => (...given) => { if (!signal.aborted) act(...given); };
  watch(key, {
    hello: isCurrent((hello) => {
      notice();
      showHello(hello, key);
    }),
    tree: isCurrent(showTree),
    snapshot: isCurrent((snapshot) => {
      showSnapshot(snapshot);
      const late = snapshot.late > 1 ? `${snapshot.late.toFixed(0)} s without a step` : snapshot.state;
      state(snapshot.late > 1 ? "waits" : snapshot.state, late);
    }),
    lost: isCurrent(() => state("lost", "connecting again")),
    refused: isCurrent((why, wasGiven) => {
      state("lost", wasGiven ? "wrong key" : "needs a key");
      const message = wasGiven ? `The server refused the key: ${why}` : `The live picture needs a key: ${why}`;
      notice(message);
      askForKeys(message);
    }),
  }, signal);
};

document.addEventListener("visibilitychange", connect);

const playground = startPlayground({ notice, askForKeys });
show(location.hash === "#/play" ? "play" : "live");
