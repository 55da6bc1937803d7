// The radix tree: the root in the middle, prefixes grow outwards.

import { calm, colours, count, make, surface } from "./dom.js";
import { refusal } from "./feed.js";

const STATES = ["cached", "in use", "evicted soon"];
const COLOURS = ["cached", "in-use", "soon"];
/** Seconds in which nodes go two thirds of the way to their places. */
const PACE = 0.12;

export class TreeView {
  constructor(canvas, details) {
    Object.assign(this, { canvas, details, nodes: new Map(), order: [], selected: null, onChange() {} });
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerdown", (event) => this.point(event));
    canvas.addEventListener("keydown", (event) => this.walk(event));
  }

  /** `hasText`: whether the server tells the text of prefixes, to this `key`. */
  setSource(hasText, key) {
    Object.assign(this, { hasText, key });
  }

  /** Takes an event `tree` in. */
  set({ shown }) {
    const before = this.nodes;
    this.nodes = new Map();
    this.order = shown.map(([id, parent, tokens, state, hidden]) => {
      const node = before.get(id) ?? { id, x: null, y: null, r: 0, alpha: 0, heat: 1 };
      Object.assign(node, { parent: null, children: [], tokens, state, hidden, leaving: false, parentIndex: parent });
      this.nodes.set(id, node);
      return node;
    });
    for (const node of this.order) {
      if (node.parentIndex === null) continue;
      node.parent = this.order[node.parentIndex];
      node.parent.children.push(node);
    }
    for (const [id, node] of before) {
      // An evicted node fades. So does one that a fork replaced, because snapshots do not tell them apart.
      if (this.nodes.has(id) || node.alpha < 0.02) continue;
      Object.assign(node, { leaving: true, children: [], tr: 0 });
      this.nodes.set(id, node);
    }
    if (this.selected && !this.nodes.has(this.selected.id)) this.selected = null;
    this.layout();
    if (this.selected) this.describe(this.selected);
  }

  /** Gives each node its angle and its ring. */
  layout() {
    const roots = this.order.filter((node) => !node.parent);
    const leaves = [];
    let deepest = 1;
    const visit = (node, depth, prefix) => {
      node.depth = depth;
      node.prefix = prefix + node.tokens;
      deepest = Math.max(deepest, depth);
      // A list of nodes to visit would lose the order of the leaves.
      if (node.children.length === 0) leaves.push(node);
      for (const child of node.children) visit(child, depth + 1, node.prefix);
    };
    const single = roots.length === 1;
    for (const root of roots) visit(root, single ? 0 : 1, 0);
    leaves.forEach((leaf, index) => { leaf.angle = (2 * Math.PI * (index + 0.5)) / leaves.length - Math.PI / 2; });
    for (const node of [...this.order].reverse()) {
      if (!node.children.length) continue;
      node.angle = (node.children[0].angle + node.children.at(-1).angle) / 2;
    }
    Object.assign(this, { deepest, leaves: leaves.length });
    this.onChange();
  }

  target(node, width, height) {
    const ring = (Math.min(width, height) / 2 - 22) * (node.depth / this.deepest) ** 0.8;
    return [width / 2 + ring * Math.cos(node.angle) * Math.min(1.5, width / height), height / 2 + ring * Math.sin(node.angle)];
  }

  /** Draws a frame and returns whether anything still moves. */
  draw() {
    const { context, width, height } = surface(this.canvas);
    const palette = colours();
    const now = performance.now() / 1000;
    const pace = calm.matches ? 1 : 1 - Math.exp(-Math.min(1, now - (this.drawn ?? now)) / PACE);
    this.drawn = now;
    let moves = false;
    const crowd = Math.min(1, 8 / Math.sqrt(this.leaves || 1)) * Math.min(1, Math.min(width, height) / 480);
    for (const node of this.nodes.values()) {
      if (!node.leaving) {
        const [x, y] = this.target(node, width, height);
        if (node.x === null) {
          node.x = node.parent?.x ?? x;
          node.y = node.parent?.y ?? y;
        }
        node.x += (x - node.x) * pace;
        node.y += (y - node.y) * pace;
        node.tr = node.tokens ? Math.max(2, Math.min(26, 2.2 + Math.sqrt(node.tokens) * 0.85 * crowd)) : 3;
        moves ||= Math.abs(x - node.x) + Math.abs(y - node.y) > 0.3;
      }
      node.r += (node.tr - node.r) * pace;
      node.alpha += ((node.leaving ? 0 : 1) - node.alpha) * pace;
      node.heat += (0 - node.heat) * pace * 0.4;
      moves ||= Math.abs((node.leaving ? 0 : 1) - node.alpha) > 0.02 || node.heat > 0.03;
      if (node.leaving && node.alpha < 0.02) this.nodes.delete(node.id);
    }
    context.lineWidth = 1.2;
    for (const node of this.order) {
      const above = node.parent;
      if (!above || above.x === null) continue;
      context.globalAlpha = node.alpha * (node.state === 1 ? 0.75 : 0.4);
      context.strokeStyle = node.state === 1 ? palette["in-use"] : palette.quiet;
      context.beginPath();
      context.moveTo(above.x, above.y);
      const [cx, cy] = [width / 2, height / 2];
      // The curve bends towards the line from the middle to the lower node, and never beyond that node.
      const [dx, dy] = [node.x - cx, node.y - cy];
      const share = Math.min(1, Math.hypot(above.x - cx, above.y - cy) / (Math.hypot(dx, dy) || 1));
      context.quadraticCurveTo(cx + share * dx, cy + share * dy, node.x, node.y);
      context.stroke();
    }
    for (const node of this.nodes.values()) {
      if (node.x === null) continue;
      const colour = node.leaving ? palette.soon : node.tokens ? palette[COLOURS[node.state]] : palette.quiet;
      if (node.heat > 0.03 || node.state === 1) {
        context.globalAlpha = node.alpha * (node.state === 1 ? 0.16 : 0) + node.heat * 0.2;
        context.fillStyle = palette["in-use"];
        disc(context, node.x, node.y, node.r + 5);
      }
      context.globalAlpha = node.alpha;
      context.fillStyle = colour;
      disc(context, node.x, node.y, node.r);
      if (node.state === 2 && !node.leaving) {
        context.fillStyle = palette.panel;
        disc(context, node.x, node.y, Math.max(0, node.r - 1.8));
      }
    }
    context.globalAlpha = 1;
    if (this.selected?.x != null) {
      context.strokeStyle = palette.text;
      context.lineWidth = 1.5;
      context.beginPath();
      context.arc(this.selected.x, this.selected.y, this.selected.r + 4, 0, 2 * Math.PI);
      context.stroke();
    }
    if (!this.order.length) {
      context.fillStyle = palette.quiet;
      context.font = "14px system-ui, sans-serif";
      context.textAlign = "center";
      context.fillText("The cache is empty. Send a request, and its prefix grows here.", width / 2, height / 2);
    }
    return moves;
  }

  point(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    const distance = (node) => Math.hypot(node.x - x, node.y - y) - node.r;
    const nearest = this.order.filter((node) => node.x !== null)
      .reduce((best, node) => (!best || distance(node) < distance(best) ? node : best), null);
    if (nearest && distance(nearest) < 10) this.select(nearest);
  }

  /** Left: towards the root. Right: away from it. Up and down: to the neighbours. */
  walk(event) {
    const from = this.selected ?? this.order[0];
    if (!from) return;
    const siblings = from.parent?.children ?? this.order.filter((node) => !node.parent);
    const at = siblings.indexOf(from);
    const to = {
      ArrowLeft: () => from.parent, ArrowRight: () => from.children[0],
      ArrowUp: () => siblings[at - 1], ArrowDown: () => siblings[at + 1], Home: () => this.order[0],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.select(this.selected ? to() ?? from : from);
  }

  select(node) {
    if (node === this.selected) return;
    this.selected = node;
    this.describe(node);
    this.onChange();
    if (!this.hasText || !node.tokens) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(node), 120);
  }

  describe(node) {
    const facts = node.tokens
      ? [`${count(node.tokens)} tokens`, `prefix of ${count(node.prefix)}`, STATES[node.state]]
      : ["the root of a namespace"];
    const forks = node.children.length + node.hidden;
    if (forks) facts.push(forks === 1 ? "1 branch" : `${count(forks)} branches`);
    if (node.hidden) facts.push(`${count(node.hidden)} of them are not drawn`);
    const line = make("p", {}, facts.join(" · "));
    const shown = this.text?.id === node.id ? [make("pre", {}, this.text.text)] : [];
    this.details.replaceChildren(line, ...shown);
  }

  /** Asks the server for the text. */
  async read(node) {
    const headers = this.key ? { authorization: `Bearer ${this.key}` } : {};
    const response = await fetch(`live/prefix?node=${node.id}`, { headers }).catch(() => null);
    if (!response || node !== this.selected) return;
    const text = response.ok ? (await response.json()).text : await refusal(response);
    this.text = { id: node.id, text };
    if (node === this.selected) this.describe(node);
  }
}

const disc = (context, x, y, radius) => {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
};
