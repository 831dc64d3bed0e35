// The charts of evaluations and certifications, and the table of differences between runs.

function runCharts(run) {
  const calibration = Object.entries(run.calibration ?? {});
  return [
    run.waterfall && waterfallChart(run),
    run.margins && marginChart(run),
    run.alpha && alphaChart(run),
    ...calibration.map(([version, parts]) => calibrationChart(version, parts)),
  ].filter(Boolean);
}

// The most letters of the title of an attack.
const MOST = 42;

// One bar for each attack; those that fooled no image are folded.
function waterfallChart(run) {
  const title = "Accuracy after each attack";
  const place = element("div");
  const draw = (all) => {
    const rows = run.waterfall.filter((row, at) => all || at === 0 || row.fooled > 0);
    const legend = [["var(--clean)", "accuracy left"], ["var(--mix)", "images fooled by this attack"]];
    const figure = chartFigure(title, waterfallSvg(rows, title), legend);
    const folded = run.waterfall.filter((row, at) => at && !row.fooled).length;
    if (folded) {
      const more = `Show ${folded} attack${folded === 1 ? "" : "s"} that fooled no further image`;
      const look = { type: "button", class: "fold", onclick: () => draw(!all) };
      figure.querySelector(".tools").prepend(element("button", look, all ? "Fold attacks without effect" : more));
    }
    place.replaceChildren(figure);
  };
  draw(false);
  return place;
}

function waterfallSvg(rows, title) {
  // On a phone the title of an attack is above its bar.
  const [line, left, width] = NARROW.matches ? [44, 0, 350] : [26, 250, 620];
  const height = rows.length * line + 8;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const scale = (share) => share * (width - left - 120);
  rows.forEach((row, at) => {
    const [y, before] = [(at + 1) * line - 22, at ? rows[at - 1].left : 1];
    const write = (text, x, attributes) => {
      const made = shape("text", { x, y: y + 14, ...attributes });
      made.textContent = text;
      svg.append(made);
    };
    const box = (x, share, fill) => {
      svg.append(shape("rect", { x, y, width: scale(Math.max(0, share)), height: 19, fill }));
    };
    const name = row.title.length > MOST ? `${row.title.slice(0, MOST - 1)}…` : row.title;
    write(name, ...(left ? [left - 8, { "text-anchor": "end" }] : [0, { y: y - 6 }]));
    box(left, row.left, "var(--clean)");
    box(left + scale(row.left), before - row.left, "var(--mix)");
    write(`${percent(row.left, 2)}${row.fooled ? ` (−${whole(row.fooled)})` : ""}`, left + scale(before) + 6, {});
  });
  return svg;
}

function histogram(title, bins, first, second, xLabel, note = "") {
  const [below, above] = [bins[first.key], bins[second.key]];
  const total = below.map((count, at) => count + (first.stacked ? above[at] : 0));
  const plot = new Plot({
    x: [bins.edges[0], bins.edges.at(-1)], y: [0, 1.08 * Math.max(1, ...total, ...above)],
    xLabel, yLabel: "images", height: 280, description: title,
  });
  const look = first.stacked ? {} : { "fill-opacity": 0.65 };
  plot.bars(bins.edges, below, first.colour, null, look);
  plot.bars(bins.edges, above, second.colour, first.stacked ? below : null, look);
  const count = (key) => whole(bins[key].reduce((sum, each) => sum + each, 0));
  const legend = [first, second].map(({ key, colour, text }) => [colour, `${text}: ${count(key)}`]);
  return chartFigure(title, plot.root, legend, note);
}

function marginChart(run) {
  return histogram(
    "Lead of the correct class under attack",
    run.margins,
    { key: "robust", colour: "var(--clean)", text: "robust", stacked: true },
    { key: "fooled", colour: "var(--mix)", text: "fooled" },
    "lead of the correct class in logits, on the worst version found",
  );
}

function alphaChart(run) {
  const { auroc } = run.alpha;
  const words = "A random attacked image has a larger α than a random clean one with probability";
  return histogram(
    "α on clean and on attacked images",
    run.alpha,
    { key: "clean", colour: "var(--clean)", text: "clean" },
    { key: "attacked", colour: "var(--mix)", text: "attacked" },
    "α",
    auroc === null ? "" : `${words} ${auroc.toFixed(3)} (AUROC; 0.5: no difference).`,
  );
}

function calibrationChart(version, parts) {
  const title = `Confidence and accuracy, ${version} images`;
  const share = (value) => percent(value, 0);
  const labels = { xLabel: "confidence", yLabel: "accuracy", xText: share, yText: share };
  const plot = new Plot({ x: [0, 1], y: [0, 1], ...labels, height: 320, description: title });
  plot.line([[0, 0], [1, 1]], "var(--faint)", { "stroke-dasharray": "2 4", "stroke-width": 1.2 });
  const colours = { mixture: "var(--mix)", model: "var(--mix)", g: "var(--g)", h: "var(--h)" };
  for (const { name, points: places } of [...parts].reverse()) {
    const shown = places.filter(([, , images]) => images >= 5);
    plot.line(shown, colours[name], { "stroke-width": 1.6 });
    for (const [x, y, images] of shown) plot.point(x, y, colours[name], { size: 4, title: `${whole(images)} images` });
  }
  const legend = parts.map(({ name, error }) => [colours[name], `${name}: calibration error ${percent(error)}`]);
  return chartFigure(title, plot.root, legend);
}

function certifiedChart(runs) {
  const norms = [...new Set(runs.map((run) => run.norm))];
  const end = Math.max(...runs.map((run) => run.certified.at(-1)[0]), 0.01);
  const top = Math.max(...runs.map((run) => run.certified[0][1]));
  const plot = new Plot({
    x: [0, 1.03 * end], y: [0, Math.min(1, 1.1 * top || 1)],
    xLabel: `${norms.join(" or ")} radius`, yLabel: "certified accuracy", yText: (share) => percent(share, 0),
    height: 360, description: "Certified accuracy as a function of the radius",
  });
  const legend = runs.map((run, at) => {
    plot.steps(run.certified, COLOURS[at % COLOURS.length], at < COLOURS.length ? {} : { "stroke-dasharray": "6 3" });
    return [COLOURS[at % COLOURS.length], run.name, at >= COLOURS.length ? "dashed" : ""];
  });
  const note = "Each curve is exact: an image counts up to its own certified radius.";
  return chartFigure("Certified accuracy", plot.root, legend, note);
}

// Paired differences of every evaluation from the first one.
function differenceTable(rows) {
  const cell = ([change, half]) => `${points(change, 2)} ± ${(100 * half).toFixed(2)}`;
  const head = ["compared with " + rows[0].from, "clean, points", "robust, points", "images", "attack"];
  const body = rows.map((row) => [row.name, cell(row.clean), cell(row.robust), whole(row.images), row.attack]);
  const cells = (tag, scope) => (text, at) => element(at ? tag : "th", { scope: at ? scope : scope || "row" }, text);
  return element(
    "figure",
    { class: "table" },
    element("figcaption", {}, "Differences on the same images"),
    element(
      "div",
      { class: "wide", tabindex: 0, role: "region", "aria-label": "Differences on the same images" },
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, ...head.map(cells("th", "col")))),
        element("tbody", {}, ...body.map((row) => element("tr", {}, ...row.map(cells("td", null))))),
      ),
    ),
    element("p", { class: "note" }, "Mean difference of paired images, with half the width of its 95 % interval."),
  );
}
