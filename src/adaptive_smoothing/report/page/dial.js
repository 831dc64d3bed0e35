// The slider: moves a mixture along its trade-off curve, or a certificate along the radius.

// Settings this near to one that was attacked snap to it while the slider is dragged.
const SNAP = 3;

class DialSection {
  constructor(dials, images) {
    Object.assign(this, { dials, images });
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
      onpointerdown: () => (this.dragging = true),
      onpointerup: () => (this.dragging = false),
      onchange: () => (this.dragging = false),
    });
    this.label = element("span", { id: "dial-label" });
    this.numbers = element("dl", { class: "numbers" });
    this.note = element("p", { class: "note" });
    this.wanted = null;
    const parts = [
      this.dials.length > 1 ? this.chooser() : null,
      element("label", {}, this.label, this.slider),
      dial.hasAttacks ? this.snaps() : null,
      this.isRadius ? null : this.wantedField(),
      this.numbers,
      this.note,
    ];
    this.place.className = "controls";
    this.place.replaceChildren(...parts.filter(Boolean));
    const chart = this.isRadius ? radiusChart : dial.hasAttacks ? tradeoffChart : cleanChart;
    const { figure, plot, places } = chart(dial);
    Object.assign(this, { plot, places });
    this.chart.replaceChildren(figure);
  }

  chooser() {
    const options = this.dials.map((dial, at) =>
      element("option", { value: at, selected: dial === this.dial }, dial.name),
    );
    const change = () => this.choose(Number(menu.value));
    const menu = element("select", { id: "dial-choice", onchange: change }, ...options);
    return element("label", {}, "Mixture", menu);
  }

  snaps() {
    const buttons = this.dial.attackedSettings.map((at) => {
      const look = { type: "button", class: "snap", "data-setting": at, onclick: () => this.move(at) };
      return element("button", look, this.nameOf(at));
    });
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
      type: "range", id: "dial-wanted", step: 0.1,
      min: (Math.floor(1000 * low) / 10).toFixed(1), max: (Math.floor(1000 * high + 1e-6) / 10).toFixed(1),
      oninput: () => this.move(dial.largestWith(Number(this.wanted.value) / 100), true),
    });
    this.wantedLabel = element("span");
    return element("label", {}, this.wantedLabel, this.wanted);
  }

  snapped(setting) {
    if (!this.dragging) return setting;
    const distance = (at) => Math.abs(at - setting);
    const near = this.dial.attackedSettings.filter((at) => distance(at) <= SNAP);
    return near.length ? near.reduce((best, at) => (distance(at) < distance(best) ? at : best)) : setting;
  }

  move(setting, byAccuracy = false) {
    const { dial } = this;
    dial.setting = Math.max(0, Math.min(dial.grid.length - 1, setting));
    this.slider.value = dial.setting;
    this.label.textContent = dial.words();
    this.showWanted(byAccuracy);
    for (const button of this.place.querySelectorAll(".snap")) {
      button.setAttribute("aria-pressed", Number(button.dataset.setting) === dial.setting);
    }
    if (this.isRadius) this.showCertified();
    else this.showMixture();
    this.slider.setAttribute("aria-valuetext", this.spoken());
    this.mark();
    this.images?.moved(dial);
  }

  // What a screen reader says when the slider moves: the setting and its accuracies.
  spoken() {
    const accuracies = [...this.numbers.querySelectorAll(".clean, .robust, .bound")].map((each) => {
      const [title, value] = [each.querySelector("dt").textContent, each.querySelector("dd").firstChild.textContent];
      return `${title} ${value}`;
    });
    return [this.dial.words(), ...accuracies].join(", ");
  }

  showWanted(byAccuracy) {
    const { dial, wanted } = this;
    if (!wanted) return;
    if (!byAccuracy) wanted.value = 100 * dial.share(dial.cleanCounts[dial.setting]);
    this.wantedLabel.textContent = `Wanted clean accuracy: ${Number(wanted.value).toFixed(1)} % on these images`;
  }

  showCertified() {
    const count = this.dial.cleanCounts[this.dial.setting];
    this.numbers.replaceChildren(this.figure("clean", "certified accuracy", count, "exact, for every radius"));
    const certified = "Certified: the prediction is correct and cannot change within this radius.";
    this.note.textContent = `${certified} ${this.dial.remark}`;
  }

  showMixture() {
    const { dial } = this;
    const clean = this.figure("clean", "clean accuracy", dial.cleanCounts[dial.setting], "exact");
    const figures = [clean, dial.hasAttacks ? this.robustFigure() : null, this.sides(dial.changes())];
    this.numbers.replaceChildren(...figures.filter(Boolean));
    this.note.textContent = `${this.remark()} ${this.dial.remark}`;
  }

  robustFigure() {
    const { dial } = this;
    const count = dial.robustCount(dial.setting);
    const attacked = dial.wasAttacked(dial.setting);
    if (attacked) return this.figure("robust", dial.measured, count, "attacked at this setting");
    return this.figure("bound", `upper bound of the ${dial.measured}`, count, "transfer of stored attacks");
  }

  remark() {
    const { dial } = this;
    if (!dial.hasAttacks) return "Validation images: an operating point may be chosen on them. Nothing was attacked.";
    if (!dial.wasAttacked(dial.setting)) {
      return "The mixture was not attacked at this setting. An attack made for it can only lower this bound.";
    }
    const others = "Successes of attacks made at other settings count as well.";
    return `The mixture was attacked at this setting. ${dial.attackedSettings.length > 1 ? others : ""}`;
  }

  figure(kind, title, count, remark) {
    const of = element("small", {}, `${whole(count)} of ${whole(this.dial.images)} images; ${remark}`);
    const value = element("dd", { "data-count": count }, percent(this.dial.share(count), 2), of);
    return element("div", { class: kind }, element("dt", {}, title), value);
  }

  // How many images the mixture classifies otherwise than at the setting where the slider began.
  sides({ gained, lost }) {
    const { dial, images } = this;
    const value = element("dd", { "data-gained": gained, "data-lost": lost }, `+${whole(gained)} / −${whole(lost)}`);
    const from = `clean images now correct / now incorrect, compared with ${this.nameOf(dial.start)}`;
    value.append(element("small", {}, from));
    if (images?.has(dial) && gained + lost) {
      const show = { type: "button", onclick: () => images.showMoved(dial) };
      value.append(element("button", show, "Show those on the page"));
    }
    return element("div", {}, element("dt", {}, "images that change sides"), value);
  }

  // The moving point: filled where the accuracy was measured, hollow where it is an upper bound.
  mark() {
    this.moving?.remove();
    const [x, y] = this.places[this.dial.setting];
    const measured = !this.dial.hasAttacks || this.dial.wasAttacked(this.dial.setting);
    const stroke = measured ? "var(--ink)" : "var(--mix)";
    const look = { size: 9, id: "dial-point", "fill-opacity": measured ? 1 : 0, stroke, "stroke-width": 2.5 };
    this.moving = this.plot.point(x, y, this.isRadius ? "var(--clean)" : "var(--mix)", look);
  }
}
