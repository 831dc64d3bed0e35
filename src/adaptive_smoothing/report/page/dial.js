// The slider: moves a mixture along its trade-off curve, or a certificate along the radius.

// Settings this near to one that was attacked snap to it while the slider is dragged.
const SNAP = 3;

class DialSection {
  constructor(dials, onMove, onShow) {
    Object.assign(this, { dials, onMove, onShow });
    this.dial = dials[0];
    this.dragging = false;
    this.place = document.getElementById("dial-controls");
    this.chart = document.getElementById("dial-chart");
    document.getElementById("dial").hidden = false;
    if (dials.every((dial) => dial.parameter === "radius")) {
      document.getElementById("dial-title").textContent = "Move the radius";
    }
    this.choose(0);
  }

  choose(number) {
    this.dial = this.dials[number];
    this.isRadius = this.dial.parameter === "radius";
    this.build();
    this.move(this.dial.setting);
  }

  build() {
    const { dial } = this;
    this.slider = element("input", {
      type: "range", id: "dial-slider", min: 0, max: dial.grid.length - 1, step: 1, value: dial.setting,
      oninput: () => this.move(this.snapped(Number(this.slider.value))),
      onpointerdown: () => (this.dragging = true), onpointerup: () => (this.dragging = false),
      onchange: () => (this.dragging = false),
    });
    this.label = element("span", { id: "dial-label" });
    this.numbers = element("dl", { class: "numbers", "aria-live": "polite" });
    this.note = element("p", { class: "note" });
    this.place.className = "controls";
    this.place.replaceChildren(
      ...[this.dials.length > 1 ? this.chooser() : null,
        element("label", {}, this.label, this.slider),
        this.isRadius ? null : this.snaps(),
        this.isRadius ? null : this.wantedField(),
        this.numbers, this.note].filter(Boolean),
    );
    this.draw();
  }

  chooser() {
    const options = this.dials.map((dial, at) => element("option", { value: at, selected: dial === this.dial }, dial.name));
    const menu = element("select", { id: "dial-choice", onchange: () => this.choose(Number(menu.value)) }, ...options);
    return element("label", {}, "Mixture", menu);
  }

  snaps() {
    const { dial } = this;
    const buttons = dial.attackedSettings.map((at) =>
      element("button", { type: "button", class: "snap", "data-setting": at, onclick: () => this.move(at) }, this.nameOf(at)),
    );
    return element("div", { class: "snaps" }, "Attacked at", ...buttons);
  }

  // A shift says little to a reader, the clean accuracy does.
  nameOf(setting) {
    const { dial } = this;
    if (dial.parameter !== "shift") return dial.words(setting);
    return `${percent(dial.share(dial.cleanCounts[setting]))} clean`;
  }

  // The field for a wanted clean accuracy chooses the largest, and so most robust, setting that has it.
  wantedField() {
    const { dial } = this;
    const shares = dial.cleanCounts.map((count) => dial.share(count));
    const [low, high] = [Math.min(...shares), Math.max(...shares)];
    this.wanted = element("input", {
      type: "range", id: "dial-wanted", min: (100 * low).toFixed(1), max: (Math.floor(1000 * high) / 10).toFixed(1), step: 0.1,
      oninput: () => this.move(dial.largestWith(Number(this.wanted.value) / 100), true),
    });
    this.wantedLabel = element("span");
    return element("label", {}, this.wantedLabel, this.wanted);
  }

  snapped(setting) {
    if (!this.dragging) return setting;
    const near = this.dial.attackedSettings.filter((at) => Math.abs(at - setting) <= SNAP);
    return near.length ? near.reduce((best, at) => (Math.abs(at - setting) < Math.abs(best - setting) ? at : best)) : setting;
  }

  move(setting, byAccuracy = false) {
    const { dial } = this;
    dial.setting = Math.max(0, Math.min(dial.grid.length - 1, setting));
    this.slider.value = dial.setting;
    this.slider.setAttribute("aria-valuetext", dial.words());
    this.label.textContent = dial.words();
    const clean = dial.share(dial.cleanCounts[dial.setting]);
    if (this.wanted) {
      if (!byAccuracy) this.wanted.value = 100 * clean;
      this.wantedLabel.textContent = `Wanted clean accuracy: ${Number(this.wanted.value).toFixed(1)} % on these images`;
    }
    for (const button of this.place.querySelectorAll(".snap")) {
      button.setAttribute("aria-pressed", Number(button.dataset.setting) === dial.setting);
    }
    this.show(clean);
    this.mark();
    this.onMove(dial);
  }

  show(clean) {
    const { dial } = this;
    const count = dial.cleanCounts[dial.setting];
    if (this.isRadius) {
      this.numbers.replaceChildren(this.figure("clean", "certified accuracy", clean, count, "exact, for every radius"));
      this.note.textContent = "Certified: the prediction is correct and cannot change within this radius.";
      return;
    }
    const robust = dial.robustCount(dial.setting);
    const attacked = dial.wasAttacked(dial.setting);
    const { gained, lost } = this.changes();
    this.numbers.replaceChildren(
      this.figure("clean", "clean accuracy", clean, count, "exact"),
      attacked
        ? this.figure("robust", "robust accuracy", dial.share(robust), robust, "attacked at this setting")
        : this.figure("bound", "upper bound of the robust accuracy", dial.share(robust), robust, "transfer of stored attacks"),
      this.sides(gained, lost),
    );
    this.note.textContent = attacked
      ? "The mixture was attacked at this setting. Successes of attacks that were made at other settings count as well."
      : "The mixture was not attacked at this setting. An attack made for it can only lower the robust accuracy.";
  }

  figure(kind, title, share, count, remark) {
    const of = `${whole(count)} of ${whole(this.dial.images)} images; ${remark}`;
    return element("div", { class: kind }, element("dt", {}, title), element("dd", { "data-count": count }, percent(share, 2), element("small", {}, of)));
  }

  // How many images the mixture classifies otherwise than at the setting where the slider began.
  changes() {
    const { dial } = this;
    let [gained, lost] = [0, 0];
    for (let image = 0; image < dial.images; image += 1) {
      const [before, now] = [dial.clean.at(dial.start, image), dial.clean.at(dial.setting, image)];
      gained += !before && now;
      lost += before && !now;
    }
    return { gained, lost };
  }

  sides(gained, lost) {
    const { dial } = this;
    const value = element("dd", { "data-gained": gained, "data-lost": lost }, `+${whole(gained)} / −${whole(lost)}`);
    value.append(element("small", {}, `clean images now correct / now incorrect, compared with ${this.nameOf(dial.start)}`));
    if (this.onShow && gained + lost) {
      value.append(element("button", { type: "button", onclick: () => this.onShow() }, "Show those on the page"));
    }
    return element("div", {}, element("dt", {}, "images that change sides"), value);
  }

  draw() {
    return this.isRadius ? this.drawRadius() : this.drawTradeoff();
  }

  drawRadius() {
    const { dial } = this;
    const places = dial.grid.map((radius, at) => [radius, dial.share(dial.cleanCounts[at])]);
    this.plot = new Plot({
      x: [0, dial.grid.at(-1)], y: [0, Math.min(1, 1.1 * places[0][1] || 1)], xLabel: dial.words(0).replace(/ = .*/, ""), yLabel: "certified accuracy",
      yText: (share) => percent(share, 0), height: 340, description: "Certified accuracy as a function of the radius",
    });
    this.plot.steps(places, "var(--clean)");
    this.where = places;
    this.chart.replaceChildren(chartFigure(`Certified accuracy: ${dial.name}`, this.plot.root));
  }

  // Robust against clean accuracy: the curve of the dial, the settings that were attacked, and all other points.
  drawTradeoff() {
    const { dial } = this;
    this.where = dial.grid.map((_, at) => [dial.share(dial.cleanCounts[at]), dial.share(dial.robustCount(at))]);
    const bound = dial.grid.map((_, at) => [dial.share(dial.cleanCounts[at]), dial.share(dial.bounds[at])]).slice(...this.boundRange());
    const attacked = dial.attackedSettings.map((at) => this.where[at]);
    const own = new Set(dial.runs.map(([, run]) => DATA.runs[run].name));
    const others = DATA.points.filter((point) => !own.has(point.name));
    const far = others.filter((point) => point.robust.value < 0.02 && point.clean.value > 0.5);
    const near = others.filter((point) => !far.includes(point));
    const seen = [...attacked, ...near.map((point) => [point.clean.value, point.robust.value])];
    const ends = near.flatMap((point) => [[point.clean.value, point.robust.low], [point.clean.value, point.robust.high]]);
    const places = seen.length > 1 ? [...seen, ...ends] : this.where;
    const [x, y] = [0, 1].map((axis) => padded(places.map((place) => place[axis]), 0.1));
    this.plot = new Plot({
      x: [x[0], Math.min(1, x[1])], y: [Math.max(0, y[0]), Math.min(1, y[1])], xLabel: "clean accuracy", yLabel: "robust accuracy", height: 380,
      xText: (share) => percent(share, x[1] - x[0] < 0.06 ? 1 : 0), yText: (share) => percent(share, y[1] - y[0] < 0.06 ? 1 : 0),
      description: `Robust against clean accuracy of ${dial.name} and of ${others.length} other classifiers`,
    });
    const { plot } = this;
    this.clip();
    plot.line(bound, "var(--mix)", { "stroke-dasharray": "5 4", "stroke-width": 1.6, "clip-path": "url(#plot-area)" });
    if (attacked.length > 1) plot.line([...attacked].sort((a, b) => a[0] - b[0]), "var(--mix)", { "clip-path": "url(#plot-area)" });
    const groups = [...new Set(near.map((point) => point.group))];
    const legend = [["var(--mix)", `${dial.name}: attacked settings`], ["var(--mix)", "upper bound: transfer of stored attacks", true]];
    for (const [at, group] of groups.entries()) {
      const [colour, kind] = [COLOURS[1 + (at % (COLOURS.length - 1))], SHAPES[(1 + at) % SHAPES.length]];
      const members = near.filter((point) => point.group === group).sort((a, b) => a.clean.value - b.clean.value);
      if (members.length > 1) plot.line(members.map((point) => [point.clean.value, point.robust.value]), colour, { "stroke-width": 1.2 });
      for (const point of members) {
        plot.interval(point.clean.value, point.robust.low, point.robust.high, colour);
        const title = `${point.name}: clean ${percent(point.clean.value, 2)}, robust ${percent(point.robust.value, 2)}`;
        plot.point(point.clean.value, point.robust.value, colour, { kind, size: 4.5, title });
      }
      legend.push([colour, group]);
    }
    for (const [clean, robust] of attacked) plot.point(clean, robust, "var(--mix)", { size: 4, title: `clean ${percent(clean, 2)}, robust ${percent(robust, 2)}` });
    const outside = far.map((point) => `${point.name}: ${percent(point.clean.value)} clean, ${percent(point.robust.value)} robust`);
    const note = outside.length ? `Not in the chart: ${outside.join("; ")}.` : "";
    this.chart.replaceChildren(chartFigure("Robust against clean accuracy", plot.root, legend, note));
  }

  // The settings whose upper bound is drawn: between those that were attacked, if there are several.
  boundRange() {
    const at = this.dial.attackedSettings;
    return at.length > 1 ? [Math.min(...at), Math.max(...at) + 1] : [0];
  }

  clip() {
    const { plot } = this;
    const box = { x: plot.left, y: plot.top, width: plot.width - plot.left - plot.right, height: plot.height - plot.top - plot.bottom };
    plot.root.prepend(shape("clipPath", { id: "plot-area" }, shape("rect", box)));
  }

  // The moving point.
  mark() {
    this.moving?.remove();
    const [x, y] = this.where[this.dial.setting];
    const honest = this.isRadius || this.dial.wasAttacked(this.dial.setting);
    const look = { size: 9, id: "dial-point", "fill-opacity": honest ? 1 : 0, stroke: honest ? "var(--ink)" : "var(--mix)", "stroke-width": 2.5 };
    this.moving = this.plot.point(x, y, this.isRadius ? "var(--clean)" : "var(--mix)", look);
  }
}
