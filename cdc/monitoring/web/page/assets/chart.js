// A line chart in SVG: time on the x axis, one unit on the y axis, gaps where a value is unknown.
// The pointer and the arrow keys show single values.
import { atTime, draw, keyed, make, say } from "./words.js";

const HEIGHT = 190, LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 24;

export class Chart {
  // `format` formats a value. `least` is the smallest maximum of the y axis, so that noise does not look like a problem.
  constructor(figure, { format, least, area = false, steps = null }) {
    this.figure = figure;
    this.format = format;
    this.least = least;
    this.area = area;
    this.steps = steps;
    this.data = null;
    this.at = null;
    this.plot = make("div", { class: "plot" });
    this.svg = draw("svg", { height: HEIGHT, role: "img", tabindex: "0" });
    this.tip = make("div", { class: "tip", hidden: true });
    this.legend = make("ul", { class: "legend" });
    this.plot.append(this.svg, this.tip);
    figure.append(this.plot, this.legend);
    new ResizeObserver(() => this.render()).observe(this.plot);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  // series: [{name, colour, values}]; limit: {value, text} or null.
  show({ times, since, until, series, limit }) {
    this.data = { times, since, until, series: series.filter((each) => each.values.some((value) => value !== null)), limit };
    this.render();
  }

  scale() {
    const { series, limit } = this.data;
    const most = Math.max(this.least, ...series.flatMap((each) => each.values.filter((value) => value !== null)));
    const withLimit = limit && limit.value <= most * 3 ? Math.max(most, limit.value * 1.05) : most;
    const step = this.steps?.find((each) => each >= withLimit / 4) ?? niceStep(withLimit / 4);
    return { step, top: Math.ceil(withLimit / step - 1e-9) * step };
  }

  render() {
    const width = this.plot.clientWidth;
    if (!this.data || !width) return;
    const { times, since, until, series, limit } = this.data;
    const { step, top } = this.scale();
    this.x = (time) => LEFT + ((time - since) / (until - since)) * (width - LEFT - RIGHT);
    this.y = (value) => TOP + (1 - Math.min(value, top) / top) * (HEIGHT - TOP - BOTTOM);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const parts = [];
    for (let value = 0; value <= top + step / 2; value += step) {
      parts.push(draw("line", { class: value === 0 ? "base-line" : "grid-line", x1: LEFT, x2: width - RIGHT, y1: this.y(value), y2: this.y(value) }));
      parts.push(draw("text", { x: LEFT - 8, y: this.y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    for (const time of timeTicks(since, until, width)) {
      parts.push(draw("text", { x: this.x(time), y: HEIGHT - 6, "text-anchor": "middle" }, tickText(time, until - since)));
    }
    if (limit && limit.value <= top) {
      parts.push(draw("line", { class: "limit", x1: LEFT, x2: width - RIGHT, y1: this.y(limit.value), y2: this.y(limit.value) }));
      parts.push(draw("text", { class: "limit-text", x: width - RIGHT, y: this.y(limit.value) - 5, "text-anchor": "end" }, limit.text));
    }
    for (const each of series) {
      const runs = unbroken(times, each.values, this.gap());
      if (this.area) for (const run of runs) parts.push(draw("path", { class: `area f${each.colour}`, d: `${this.path(run)}L${this.x(run.at(-1)[0])} ${this.y(0)}L${this.x(run[0][0])} ${this.y(0)}Z` }));
      for (const run of runs) parts.push(draw("path", { class: `line c${each.colour}`, d: this.path(run) }));
    }
    this.cross = draw("g");
    this.svg.replaceChildren(...parts, this.cross);
    this.describe();
    this.choose(this.at);
  }

  path(run) {
    const start = run.length === 1 ? `M${this.x(run[0][0]) - 1} ${this.y(run[0][1])}` : "";
    return start + run.map(([time, value], at) => `${at || start ? "L" : "M"}${this.x(time).toFixed(1)} ${this.y(value).toFixed(1)}`).join("");
  }

  gap() {
    return Math.max(4 * (this.data.until - this.data.since) / 240, 12);
  }

  describe() {
    const { series } = this.data;
    const last = (each) => each.values.findLast((value) => value !== null);
    this.svg.setAttribute("aria-label", series.length ? series.map((each) => `${each.name}: ${this.format(last(each))} now, at most ${this.format(Math.max(...each.values.filter((value) => value !== null)))}`).join("; ") : "no data for this period");
    keyed(this.legend, series, (each) => each.name, (each) => make("li", {}, swatch(each.colour), make("span", { text: each.name }), make("b")), (element, each) => {
      element.querySelector("line").setAttribute("class", `line c${each.colour}`);
      say(element.querySelector("b"), this.format(last(each)));
    });
    if (!series.length && !this.legend.querySelector(".empty")) this.legend.append(make("li", { class: "empty", text: "No data for this period." }));
    else if (series.length) this.legend.querySelector(".empty")?.remove();
  }

  point(event) {
    if (!this.data || !this.data.times.length) return;
    const box = this.svg.getBoundingClientRect();
    const time = this.data.since + ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * (this.data.until - this.data.since);
    this.choose(nearest(this.data.times, time));
  }

  key(event) {
    if (!this.data || !["ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) return;
    event.preventDefault();
    const last = this.data.times.length - 1, from = this.at ?? last;
    this.choose(event.key === "Escape" ? null : Math.max(0, Math.min(last, from + (event.key === "ArrowLeft" ? -1 : 1))));
  }

  choose(at) {
    this.at = at;
    this.tip.hidden = at === null || !this.data || at >= this.data.times.length;
    this.cross?.replaceChildren();
    if (this.tip.hidden) return;
    const { times, series } = this.data, x = this.x(times[at]);
    this.cross.append(draw("line", { class: "cross", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
    const known = series.filter((each) => each.values[at] !== null);
    for (const each of known) this.cross.append(draw("circle", { class: `dot f${each.colour}`, cx: x, cy: this.y(each.values[at]), r: 4.5 }));
    const rows = known.map((each) => make("li", {}, make("span", {}, swatch(each.colour), each.name), make("b", { text: this.format(each.values[at]) })));
    this.tip.replaceChildren(make("div", { class: "muted", text: atTime(times[at]) }), make("ul", {}, ...rows));
    const room = this.plot.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x > this.plot.clientWidth / 2 ? x - this.tip.offsetWidth - 12 : x + 12))}px`;
  }
}

function swatch(colour) {
  return draw("svg", { viewBox: "0 0 16 10", "aria-hidden": "true" }, draw("line", { class: `line c${colour}`, x1: 1, x2: 15, y1: 5, y2: 5 }));
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 2.5, 5].find((factor) => factor * power >= rough) ?? 10);
}

function timeTicks(since, until, width) {
  const steps = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800];
  const step = steps.find((each) => (until - since) / each <= width / 90) ?? 172800;
  const offset = new Date().getTimezoneOffset() * 60, ticks = [];
  for (let time = Math.ceil((since - offset) / step) * step + offset; time <= until; time += step) ticks.push(time);
  return ticks.filter((time) => time - since > (until - since) * 0.03 && until - time > (until - since) * 0.03);
}

function tickText(time, span) {
  const date = new Date(time * 1000);
  return span > 2 * 86400 ? date.toLocaleDateString("en-GB", { weekday: "short", day: "numeric" }) : date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

function unbroken(times, values, gap) {
  const runs = [];
  let run = [], before = null;
  times.forEach((time, at) => {
    if (values[at] === null || (before !== null && time - before > gap)) { if (run.length) runs.push(run); run = []; }
    if (values[at] !== null) run.push([time, values[at]]);
    before = time;
  });
  if (run.length) runs.push(run);
  return runs;
}

function nearest(times, time) {
  let best = 0;
  times.forEach((each, at) => { if (Math.abs(each - time) < Math.abs(times[best] - time)) best = at; });
  return best;
}
