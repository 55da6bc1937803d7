// Small helpers for the document.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children; `data` and `style` are objects. */
export const make = (tag, { data, style, ...properties } = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  Object.assign(made.dataset, data);
  Object.assign(made.style, style);
  made.append(...children);
  return made;
};

export const text = (id, value) => {
  const element = $(id);
  if (element.textContent !== value) element.textContent = value;
};

const whole = new Intl.NumberFormat("en");

/** A count, with at most four digits and a unit. */
export const count = (value) => {
  if (value < 10_000) return whole.format(Math.round(value));
  if (value < 1e6) return `${+(value / 1e3).toPrecision(3)}k`;
  return `${+(value / 1e6).toPrecision(3)}M`;
};

export const rate = (value) => (value < 10 ? value.toFixed(1) : count(value));

export const milliseconds = (value) =>
  value >= 1000 ? `${(value / 1000).toPrecision(3)} s` : value >= 1 ? `${value.toPrecision(3)} ms`
    : `${Math.round(value * 1000)} µs`;

/** A canvas' context in CSS pixels, cleared, with its width and height. */
export const surface = (canvas) => {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
};

let palette = {};

/** The colours of the page, which follow the light or dark setting. */
export const colours = () => palette;

const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  const names = ["text", "quiet", "line", "panel", "in-use", "cached", "soon", "prefill", "decode", "reused", "queue"];
  palette = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
};
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);

export const calm = matchMedia("(prefers-reduced-motion: reduce)");
