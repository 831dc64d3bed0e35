// The charts next to the slider. Each function returns a figure, its plot, and the place of every setting.

const ROBUST = "robust accuracy";

function radiusChart(dial) {
  const places = dial.grid.map((radius, at) => [radius, dial.share(dial.cleanCounts[at])]);
  const plot = new Plot({
    x: [0, dial.grid.at(-1)], y: [0, Math.min(1, 1.1 * places[0][1] || 1)],
    xLabel: dial.parameterName, yLabel: "certified accuracy", yText: (share) => percent(share, 0), height: 340,
    description: "Certified accuracy as a function of the radius",
  });
  plot.steps(places, "var(--clean)");
  return { figure: chartFigure(`Certified accuracy: ${dial.name}`, plot.root), plot, places };
}

// The clean accuracy of a mixture that was not attacked.
function cleanChart(dial) {
  const places = dial.grid.map((setting, at) => [setting, dial.share(dial.cleanCounts[at])]);
  const text = (share) => percent(share, 0);
  const plot = new Plot({
    x: [dial.grid[0], dial.grid.at(-1)], y: padded(places.map(([, share]) => share)), height: 340,
    xLabel: dial.parameterName, yLabel: "clean accuracy", yText: text,
    description: `Clean accuracy of ${dial.name} as a function of ${dial.parameterName}`,
  });
  plot.line(places, "var(--mix)");
  return { figure: chartFigure("Clean accuracy on validation images", plot.root), plot, places };
}

// Robust against clean accuracy: the curve of the dial, the settings that were attacked, and all other points.
function tradeoffChart(dial) {
  const at = (count) => (_, setting) => [dial.share(dial.cleanCounts[setting]), dial.share(count(setting))];
  const places = dial.grid.map(at((setting) => dial.robustCount(setting)));
  const bound = dial.grid.map(at((setting) => dial.bounds[setting])).slice(...boundRange(dial));
  const attacked = dial.attackedSettings.map((setting) => places[setting]);
  const { near, far } = otherPoints(dial);
  // Other classifiers may have been attacked in another way than a sweep.
  const measured = dial.measured === ROBUST || !near.length ? dial.measured : "accuracy under attack";
  const title = `${sentence(measured.replace(ROBUST, "robust"))} against clean accuracy`;
  const description = `${title} of ${dial.name} and of ${near.length + far.length} other classifiers`;
  const plot = tradeoffPlot(tradeoffRange(attacked, near, places), measured, description);
  const line = { "clip-path": plot.clip("plot-area") };
  plot.line(bound, "var(--mix)", { ...line, "stroke-dasharray": "5 4", "stroke-width": 1.6 });
  if (attacked.length > 1) plot.line(attacked, "var(--mix)", line);
  const legend = [
    ["var(--mix)", `${dial.name}: attacked settings`],
    ["var(--mix)", "upper bound: transfer of stored attacks", "dashed"],
    ...drawGroups(plot, near),
  ];
  for (const [clean, robust] of attacked) {
    plot.point(clean, robust, "var(--mix)", { size: 4, title: accuracies(clean, robust) });
  }
  const outside = far.map(
    ({ name, clean, robust }) => `${name}: ${percent(clean.value)} clean, ${percent(robust.value)} robust`,
  );
  const note = outside.length ? `Not in the chart: ${outside.join("; ")}.` : "";
  return { figure: chartFigure(title, plot.root, legend, note), plot, places };
}

// The settings whose upper bound is drawn: between those that were attacked, if there are several.
function boundRange(dial) {
  const at = dial.attackedSettings;
  return at.length > 1 ? [at[0], at.at(-1) + 1] : [0];
}

// The points of other runs. Those of classifiers that are hardly robust would leave no room for the others.
function otherPoints(dial) {
  const own = new Set(dial.runs.map(([, run]) => DATA.runs[run].name));
  const others = DATA.points.filter((point) => !own.has(point.name));
  const isFar = (point) => point.robust.value < 0.02 && point.clean.value > 0.5;
  return { near: others.filter((point) => !isFar(point)), far: others.filter(isFar) };
}

// The accuracies that the chart shows.
function tradeoffRange(attacked, near, places) {
  const seen = [...attacked, ...near.map(({ clean, robust }) => [clean.value, robust.value])];
  const ends = near.flatMap(({ clean, robust }) => [[clean.value, robust.low], [clean.value, robust.high]]);
  const shown = seen.length > 1 ? [...seen, ...ends] : places;
  return [0, 1].map((axis) => padded(shown.map((place) => place[axis]), 0.1));
}

function accuracies(clean, robust) {
  return `clean ${percent(clean, 2)}, robust ${percent(robust, 2)}`;
}

function tradeoffPlot([x, y], measured, description) {
  const text = ([low, high]) => (share) => percent(share, high - low < 0.06 ? 1 : 0);
  return new Plot({
    x: [x[0], Math.min(1, x[1])], y: [Math.max(0, y[0]), Math.min(1, y[1])],
    xLabel: "clean accuracy", yLabel: measured,
    xText: text(x), yText: text(y), height: 380, description,
  });
}

// Draws points of one group in one colour, and returns the entries of the legend.
function drawGroups(plot, points) {
  const groups = [...new Set(points.map((point) => point.group))];
  return groups.map((group, at) => {
    const [colour, kind] = [COLOURS[1 + (at % (COLOURS.length - 1))], SHAPES[(1 + at) % SHAPES.length]];
    const members = points.filter((point) => point.group === group).sort((a, b) => a.clean.value - b.clean.value);
    const places = members.map(({ clean, robust }) => [clean.value, robust.value]);
    if (members.length > 1) plot.line(places, colour, { "stroke-width": 1.2 });
    members.forEach(({ name, robust }, number) => {
      const [x, y] = places[number];
      plot.interval(x, robust.low, robust.high, colour);
      plot.point(x, y, colour, { kind, size: 4.5, title: `${name}: ${accuracies(x, y)}` });
    });
    return [colour, group, kind];
  });
}
