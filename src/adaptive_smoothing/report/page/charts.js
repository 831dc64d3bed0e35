// Charts as SVG: axes, lines, points and bars, in the colours of the page.

const NAMESPACE = "http://www.w3.org/2000/svg";
const COLOURS = ["var(--mix)", "var(--clean)", "var(--h)", "var(--g)", "var(--gold)", "var(--faint)"];
// The height of a line of text.
const LINE = 15;
// On a phone charts are drawn narrow, so that the size of their text hardly changes when they are fitted to the screen.
const NARROW = window.matchMedia("(max-width: 540px)");
const SHAPES = ["circle", "square", "triangle", "diamond"];

function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A circle, square, triangle or diamond, so that groups differ in more than colour.
function marker(kind, x, y, size, look) {
  const corners = {
    square: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
    triangle: [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]],
    diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  }[kind];
  if (!corners) return shape("circle", { cx: x, cy: y, r: size, ...look });
  const places = corners.map(([dx, dy]) => `${x + dx * size},${y + dy * size}`);
  return shape("polygon", { points: places.join(" "), ...look });
}

// About `count` round numbers from `low` to `high`.
function ticks(low, high, count = 6) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(at);
  return found.map((value) => Number(value.toPrecision(10)));
}

// A long label of an axis becomes two lines.
function folded(text, room) {
  if (text.length * 6.3 <= room) return [text];
  const spaces = [...text.matchAll(/ /g)].map(({ index }) => index);
  const middle = text.length / 2;
  const at = spaces.reduce((best, each) => (Math.abs(each - middle) < Math.abs(best - middle) ? each : best), 0);
  return at ? [text.slice(0, at), text.slice(at + 1)] : [text];
}

function number(value) {
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

class Plot {
  constructor({ x, y, xLabel, yLabel, xText = number, yText = number, height = 300, left = 56, description }) {
    const width = NARROW.matches ? 350 : 560;
    const lines = folded(xLabel, width - left);
    Object.assign(this, { x, y, width, height, left, right: 14, top: 12, bottom: 31 + LINE * lines.length });
    this.root = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": description });
    this.axes(lines, yLabel, xText, yText);
    this.marks = this.root.appendChild(shape("g"));
  }

  px(value) {
    const [low, high] = this.x;
    return this.left + ((value - low) / (high - low || 1)) * (this.width - this.left - this.right);
  }

  py(value) {
    const [low, high] = this.y;
    return this.height - this.bottom - ((value - low) / (high - low || 1)) * (this.height - this.top - this.bottom);
  }

  axes(xLabels, yLabel, xText, yText) {
    const bottom = this.height - this.bottom;
    for (const value of ticks(...this.y)) {
      const at = this.py(value);
      this.root.append(shape("line", { class: "grid", x1: this.left, x2: this.width - this.right, y1: at, y2: at }));
      this.text(yText(value), this.left - 7, at + 4, { "text-anchor": "end", class: "faint" }, this.root);
    }
    for (const value of ticks(...this.x, NARROW.matches ? 5 : 6)) {
      const at = this.px(value);
      this.root.append(shape("line", { class: "grid", x1: at, x2: at, y1: this.top, y2: bottom }));
      this.text(xText(value), at, bottom + 17, { "text-anchor": "middle", class: "faint" }, this.root);
    }
    const [right, middle] = [this.width - this.right, (this.top + bottom) / 2];
    this.root.append(shape("line", { class: "axis", x1: this.left, x2: right, y1: bottom, y2: bottom }));
    xLabels.forEach((label, at) => {
      const y = this.height - 8 - LINE * (xLabels.length - 1 - at);
      this.text(label, (this.left + right) / 2, y, { "text-anchor": "middle" }, this.root);
    });
    const turned = { "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` };
    this.text(yLabel, 14, middle, turned, this.root);
  }

  text(content, x, y, attributes = {}, parent = this.marks) {
    const made = shape("text", { x, y, ...attributes });
    made.textContent = content;
    return parent.appendChild(made);
  }

  line(places, colour, attributes = {}) {
    const corner = ([x, y], at) => `${at ? "L" : "M"}${this.px(x).toFixed(1)} ${this.py(y).toFixed(1)}`;
    const look = { fill: "none", stroke: colour, "stroke-width": 2.2, ...attributes };
    return this.marks.appendChild(shape("path", { d: places.map(corner).join(""), ...look }));
  }

  // Returns the address of a clip path that hides what is outside of the axes.
  clip(id) {
    const [width, height] = [this.width - this.left - this.right, this.height - this.top - this.bottom];
    const box = shape("rect", { x: this.left, y: this.top, width, height });
    this.root.prepend(shape("clipPath", { id }, box));
    return `url(#${id})`;
  }

  // A curve that is constant between its places and falls after each of them.
  steps(places, colour, attributes = {}) {
    const corners = places.flatMap(([x, y], at) => (at ? [[x, places[at - 1][1]], [x, y]] : [[x, y]]));
    return this.line(corners, colour, attributes);
  }

  interval(x, low, high, colour) {
    const at = this.px(x);
    this.marks.append(
      shape("line", { x1: at, x2: at, y1: this.py(low), y2: this.py(high), stroke: colour, "stroke-width": 1.2 }),
    );
  }

  point(x, y, colour, { kind = "circle", size = 6, title = "", ...attributes } = {}) {
    const look = { fill: colour, stroke: "var(--paper)", "stroke-width": 1.2, ...attributes };
    const made = marker(kind, this.px(x), this.py(y), size, look);
    if (title) {
      const tip = shape("title");
      tip.textContent = title;
      made.append(tip);
    }
    return this.marks.appendChild(made);
  }

  // Bars between edges, on top of each other if `base` has heights.
  bars(edges, counts, colour, base = null, attributes = {}) {
    counts.forEach((count, at) => {
      if (!count) return;
      const from = base ? base[at] : 0;
      const [left, right] = [this.px(edges[at]), this.px(edges[at + 1])];
      const [top, bottom] = [this.py(from + count), this.py(from)];
      const box = { x: left, y: top, width: Math.max(0.8, right - left - 0.6), height: bottom - top };
      this.marks.append(shape("rect", { ...box, fill: colour, ...attributes }));
    });
  }
}

// The mark in front of an entry of a legend: a bar, a dashed bar, or the marker of a group of points.
function legendMark(colour, look) {
  if (SHAPES.includes(look)) {
    const svg = shape("svg", { class: "mark", viewBox: "0 0 14 14", "aria-hidden": true });
    svg.append(marker(look, 7, 7, 4.5, { fill: colour }));
    return svg;
  }
  const mark = element("i");
  const dashes = `repeating-linear-gradient(90deg, ${colour} 0 5px, transparent 5px 9px)`;
  mark.style.background = look === "dashed" ? dashes : colour;
  return mark;
}

// Returns a figure with a caption, a chart, a legend, and buttons that save the chart.
function chartFigure(title, svg, legend = [], note = "") {
  const items = legend.map(([colour, text, look]) => element("li", {}, legendMark(colour, look), text));
  return element(
    "figure",
    { class: "chart" },
    element("figcaption", {}, title),
    svg,
    items.length ? element("ul", { class: "legend" }, ...items) : null,
    note ? element("p", { class: "note" }, note) : null,
    saveButtons(svg, title),
  );
}

function padded(values, share = 0.06) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = (high - low || 0.1) * share;
  return [low - room, high + room];
}
