// The batch over time: a lane for each running request, with its prefill chunks and decode rows.

import { colours, surface } from "./dom.js";

const SECONDS = 30;
const LANES = 16;

export class Lanes {
  constructor(canvas) {
    Object.assign(this, { canvas, lanes: [], byRequest: new Map(), queue: [], now: 0 });
  }

  /** Takes a snapshot in. */
  push({ time, requests, waiting }) {
    if (time < this.now) Object.assign(this, { lanes: [], byRequest: new Map(), queue: [] });
    const before = this.now;
    this.now = time;
    const from = Math.max(before, time - 0.5);
    const seen = new Set();
    for (const [id, prompt, cached, computed] of requests) {
      seen.add(id);
      let run = this.byRequest.get(id);
      if (!run) {
        run = { computed: cached, pieces: [], ended: null };
        if (cached > 0) run.pieces.push({ kind: "reused", from, to: from + 0.15, share: Math.min(1, cached / prompt) });
        this.byRequest.set(id, run);
        this.place(run, time);
      }
      if (computed > run.computed) {
        const kind = run.computed < prompt ? "prefill" : "decode";
        const last = run.pieces.at(-1);
        if (last && last.kind === kind && last.to >= from - 0.02) last.to = time;
        else run.pieces.push({ kind, from: Math.max(from, last?.to ?? 0), to: time });
        run.computed = computed;
      }
      run.last = time;
    }
    for (const [id, run] of this.byRequest) {
      if (!seen.has(id)) {
        run.ended = time;
        this.byRequest.delete(id);
      }
    }
    for (const lane of this.lanes) {
      while (lane.length && lane[0].ended !== null && lane[0].ended < time - SECONDS) lane.shift();
    }
    this.queue.push({ from, to: time, waiting });
    while (this.queue.length && this.queue[0].to < time - SECONDS) this.queue.shift();
  }

  /** Gives a new request the first lane that is free. */
  place(run, time) {
    let lane = this.lanes.find((lane) => {
      const last = lane.at(-1);
      return !last || (last.ended !== null && last.ended < time - 0.1);
    });
    if (!lane) {
      lane = [];
      this.lanes.push(lane);
    }
    lane.push(run);
  }

  draw(now) {
    const { context, width, height } = surface(this.canvas);
    const palette = colours();
    const queueHeight = 26;
    const shown = this.lanes.slice(0, LANES);
    const step = (height - queueHeight - 8) / Math.max(8, shown.length);
    const thick = Math.max(2, Math.min(12, step * 0.66));
    const x = (time) => width - ((now - time) / SECONDS) * width;
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    for (let second = 0; second <= SECONDS; second += 5) {
      const at = Math.round(x(now - second)) - 0.5;
      context.beginPath();
      context.moveTo(at, 0);
      context.lineTo(at, height);
      context.stroke();
    }
    const bar = (left, right, y, high) => {
      if (right <= 0) return;
      const wide = Math.max(1.5, right - Math.max(0, left));
      context.beginPath();
      context.roundRect(Math.max(0, left), y, wide, high, Math.min(3, high / 2, wide / 2));
      context.fill();
    };
    shown.forEach((lane, index) => {
      const middle = (index + 0.5) * step;
      for (const run of lane) {
        for (const { kind, from, to } of run.pieces) {
          context.fillStyle = palette[kind];
          const high = kind === "decode" ? thick * 0.5 : thick;
          bar(x(from), x(to), middle - high / 2, high);
        }
      }
    });
    const most = Math.max(4, ...this.queue.map(({ waiting }) => waiting));
    context.fillStyle = palette.queue;
    for (const { from, to, waiting } of this.queue) {
      if (!waiting) continue;
      const high = (waiting / most) * queueHeight;
      context.fillRect(x(from), height - high, Math.max(1, x(to) - x(from) + 0.5), high);
    }
  }
}
