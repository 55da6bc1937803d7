// Sparklines over the last minute.

import { colours, surface } from "./dom.js";

const SECONDS = 60;

export class Sparkline {
  /** `series` are pairs of a name and a colour, drawn above each other; `top` fixes the scale. */
  constructor(canvas, series, top) {
    Object.assign(this, { canvas, series, top, points: [] });
  }

  push(time, values) {
    const last = this.points.at(-1);
    if (last && time < last.time) this.points = [];
    this.points.push({ time, values });
    while (this.points.length && this.points[0].time < time - SECONDS - 2) this.points.shift();
  }

  draw(now) {
    const { context, width, height } = surface(this.canvas);
    if (this.points.length < 2) return;
    const highest = this.top ?? Math.max(1e-9, ...this.points.map((point) => Math.max(...point.values)));
    const x = (time) => width - ((now - time) / SECONDS) * width;
    const y = (value) => height - 1.5 - (value / highest) * (height - 4);
    this.series.forEach((colour, index) => {
      context.beginPath();
      for (const { time, values } of this.points) context.lineTo(x(time), y(values[index]));
      context.strokeStyle = context.fillStyle = colours()[colour];
      context.lineWidth = 1.6;
      context.lineJoin = "round";
      context.stroke();
      context.lineTo(x(this.points.at(-1).time), height);
      context.lineTo(x(this.points[0].time), height);
      context.globalAlpha = 0.12;
      context.fill();
      context.globalAlpha = 1;
    });
  }
}
