// An answer as its tokens: shaded by how they came, with their probabilities on a click.

import { $, make } from "./dom.js";

const percent = (logprob) => {
  const share = 100 * Math.exp(logprob);
  return share >= 99.95 ? "100 %" : share >= 0.1 ? `${share.toFixed(1)} %` : "< 0.1 %";
};

const visible = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";

/** Writes tokens into `parent`. A character may be split over tokens; the last of them shows it. */
export class TokenWriter {
  constructor(parent) {
    Object.assign(this, { parent, decoder: new TextDecoder(), count: 0, forced: 0 });
  }

  push(token) {
    const shown = this.decoder.decode(new Uint8Array(token.bytes), { stream: true });
    const span = make("span", { className: token.forced ? "token forced" : "token", tabIndex: -1 }, shown);
    span.token = token;
    // Uncertain tokens are underlined, the more the less likely they were.
    const doubt = token.forced ? 0 : 1 - Math.exp(token.logprob);
    if (doubt > 0.3) span.dataset.doubt = doubt > 0.75 ? 3 : doubt > 0.5 ? 2 : 1;
    this.count += 1;
    this.forced += token.forced ? 1 : 0;
    if (this.count === 1) span.tabIndex = 0;
    this.parent.append(span);
  }
}

const popover = $("token");
let opened = null;

const close = () => {
  popover.hidden = true;
  opened?.classList.remove("open");
  opened = null;
};

const open = (span) => {
  close();
  opened = span;
  span.classList.add("open");
  const { token } = span;
  const rows = [...token.top_logprobs];
  if (!rows.some((row) => row.token === token.token)) rows.push(token);
  popover.replaceChildren(
    make("p", {}, make("code", {}, visible(token.token)), ` ${percent(token.logprob)}`,
      token.forced ? make("span", { className: "quiet" }, " · forced by the grammar") : ""),
    make("ul", {}, ...rows.map((row) => make("li", { className: row.token === token.token ? "chosen" : "" },
      make("i", { style: { width: `${100 * Math.exp(row.logprob)}%` } }),
      make("code", {}, visible(row.token)), make("span", {}, percent(row.logprob))))));
  popover.hidden = false;
  const at = span.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = popover;
  const below = at.bottom + height + 12 < innerHeight;
  popover.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8)) + scrollX}px`;
  popover.style.top = `${(below ? at.bottom + 6 : Math.max(8, at.top - height - 6)) + scrollY}px`;
};

/** Lets the tokens below `root` be clicked, and walked through with the arrow keys. */
export const enableTokens = (root) => {
  root.addEventListener("click", (event) => {
    const span = event.target.closest(".token");
    if (span) open(span);
  });
  root.addEventListener("keydown", (event) => {
    const span = event.target.closest?.(".token");
    if (!span) return;
    const to = { ArrowRight: span.nextElementSibling, ArrowLeft: span.previousElementSibling }[event.key];
    if (to?.token) {
      span.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
      if (opened) open(to);
    } else if (event.key === "Enter" || event.key === " ") open(span);
    else return;
    event.preventDefault();
  });
};

document.addEventListener("pointerdown", (event) => {
  if (!popover.hidden && !popover.contains(event.target) && !event.target.closest?.(".token")) close();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !popover.hidden) {
    event.stopPropagation();
    opened?.focus();
    close();
  }
}, true);
