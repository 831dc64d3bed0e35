// The images of a run: a grid with filters, and one image with everything that is known about it.

const MOST_BARS = 5;

class ImageSet {
  constructor(run, number, dials) {
    const raw = run.pictures;
    Object.assign(this, raw);
    this.run = run;
    this.number = number;
    for (const [name, value] of Object.entries(raw)) if (value && value.bytes) this[name] = readArray(value);
    this.probabilities = Object.fromEntries(Object.entries(raw.probabilities || {}).map(([name, packed]) => [name, readArray(packed)]));
    this.dial = dials.find((dial) => dial.runs.some(([, run]) => run === number));
    this.isMixture = "clean_g" in this.probabilities || "clean_g_prediction" in this;
    this.versions = raw.sheets.map((sheet) => sheet.key);
    this.own = this.dial ? this.dial.runs.find(([, run]) => run === number)[0] : null;
  }

  className(label) {
    return this.classes[label] ?? String(label);
  }

  // The share of each class according to g, h or the mixture (`model`); null if they were not stored.
  shares(image, version, part) {
    if (part === "model" && this.dial && `${version}_g` in this.probabilities) {
      const alpha = this.alpha(image, version);
      const [g, h] = ["g", "h"].map((base) => this.shares(image, version, base));
      return g.map((share, label) => (1 - alpha) * share + alpha * h[label]);
    }
    const stored = this.probabilities[`${version}_${part}`];
    if (!stored) return null;
    const count = stored.length / this.count;
    return Array.from(stored.subarray(image * count, (image + 1) * count), (share) => share / FULL);
  }

  alpha(image, version) {
    const { dial } = this;
    if (dial && dial.parameter !== "radius") return dial.alphaOf(dial.setting, this[`${version}_score`]?.[image], this.point);
    return this[`${version}_alpha`]?.[image];
  }

  // Whether the mixture or the model is correct at the setting of the dial.
  isCorrect(image, version, setting = this.dial?.setting) {
    const { dial } = this;
    if (!dial) return this.prediction_of(image, version) === this.label[image];
    const row = this.row[image];
    if (version === "clean") return dial.clean.at(setting, row);
    const transferred = dial.attacked.find((each) => each.key === version || each.key === String(this.number));
    return transferred.at(setting, row);
  }

  prediction_of(image, version) {
    return (version === "clean" ? this.prediction : this.attackedPrediction)[image];
  }

  // The class that g, h or the mixture predicts.
  predicted(image, version, part) {
    const shares = this.shares(image, version, part);
    if (part !== "model") return this[`${version}_${part}_prediction`]?.[image] ?? best(shares);
    if (!this.dial || this.dial.parameter === "radius") return this.prediction_of(image, version);
    const label = this.label[image];
    if (this.isCorrect(image, version)) return label;
    if (!shares) return this.dial.setting === this.own ? this.prediction_of(image, version) : null;
    return best(shares.map((share, each) => (each === label ? -1 : share)));
  }
}

function best(shares) {
  return shares.indexOf(Math.max(...shares));
}

class ImageSection {
  constructor(runs, dials) {
    this.sets = runs.map((run, number) => (run.pictures ? new ImageSet(run, number, dials) : null)).filter(Boolean);
    document.getElementById("images").hidden = false;
    this.grid = document.getElementById("image-grid");
    this.detail = document.getElementById("image-detail");
    this.filters = document.getElementById("image-filters");
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.addSheets();
    this.choose(0);
  }

  // One rule of style for each sheet, so that its address is on the page once.
  addSheets() {
    const rules = this.sets.flatMap((set) => set.sheets.map((sheet, at) => `.sheet-${set.number}-${at}{background-image:url(${sheet.address});background-size:${100 * set.columns}% auto}`));
    document.head.append(element("style", {}, rules.join("\n")));
    this.loaded = new Map();
  }

  choose(number) {
    this.set = this.sets[number];
    this.filter = "all";
    this.version = this.set.versions.at(-1);
    this.label = "";
    this.attack = "";
    this.build();
    this.image = this.firstImage();
    this.refresh(true);
  }

  // An image that shows what mixing is good for, if there is one.
  firstImage() {
    const [, condition] = this.conditions.saved ?? this.conditions.all;
    return Array.from({ length: this.set.count }, (_, image) => image).find(condition);
  }

  tests() {
    const { set } = this;
    const attacked = set.versions.find((version) => version !== "clean");
    const base = (image, version, part) => set.predicted(image, version, part) === set.label[image];
    const found = { all: ["all", () => true] };
    if (set.isMixture) {
      found.disagree = ["g right, h wrong", (image) => base(image, "clean", "g") && !base(image, "clean", "h")];
    }
    if (set.isMixture && attacked) {
      found.saved = ["saved by h", (image) => set.isCorrect(image, "clean") && !base(image, attacked, "g") && set.isCorrect(image, attacked)];
      found.lost = ["lost by mixing", (image) => base(image, attacked, "h") && !set.isCorrect(image, attacked)];
    }
    if (attacked) {
      found.fooled = ["fooled by the attack", (image) => set.isCorrect(image, "clean") && !set.isCorrect(image, attacked)];
      found.robust = ["robust", (image) => set.isCorrect(image, "clean") && set.isCorrect(image, attacked)];
    }
    found.wrong = ["misclassified", (image) => !set.isCorrect(image, "clean")];
    if (set.dial) {
      found.moved = ["changed by the slider", (image) => set.versions.some((version) => set.isCorrect(image, version) !== set.isCorrect(image, version, set.dial.start))];
    }
    return found;
  }

  build() {
    const { set } = this;
    this.conditions = this.tests();
    this.chips = Object.entries(this.conditions).map(([key, [title]]) =>
      element("button", { type: "button", "data-filter": key, onclick: () => this.setFilter(key) }, title, element("small")),
    );
    const menu = (title, id, options, change) => {
      const made = element("select", { id, onchange: () => change(made.value) }, ...options.map(([value, text]) => element("option", { value }, text)));
      return element("label", {}, title, made);
    };
    const labels = [...new Set(set.label)].sort((a, b) => a - b).map((label) => [label, set.className(label)]);
    const attacks = [...new Set(set.fooledBy || [])].filter((title) => title && title !== "misclassified").sort().map((title) => [title, title]);
    const shown = set.versions.map((version, at) => [version, set.sheets[at].title]).reverse();
    this.filters.replaceChildren(
      ...[this.sets.length > 1 ? menu("Run", "image-run", this.sets.map((each, at) => [at, each.run.name]), (value) => this.choose(Number(value))) : null,
        shown.length > 1 ? menu("Show", "image-version", shown, (value) => ((this.version = value), this.refresh())) : null,
        menu("Class", "image-class", [["", "all classes"], ...labels], (value) => ((this.label = value), this.refresh(true))),
        attacks.length ? menu("Attack that succeeded", "image-attack", [["", "any or none"], ...attacks], (value) => ((this.attack = value), this.refresh(true))) : null,
        element("div", { class: "chips", role: "group", "aria-label": "Filters" }, ...this.chips)].filter(Boolean),
    );
    const run = this.filters.querySelector("#image-run");
    if (run) run.value = this.sets.indexOf(set);
  }

  showMoved() {
    if (!("moved" in this.conditions)) return;
    this.setFilter("moved");
    document.getElementById("images").scrollIntoView();
  }

  setFilter(key) {
    this.filter = key;
    this.refresh(true);
  }

  matches(image, condition) {
    const { set } = this;
    if (this.label !== "" && set.label[image] !== Number(this.label)) return false;
    if (this.attack && set.fooledBy[image] !== this.attack) return false;
    return condition(image);
  }

  // Called when a filter or the dial moves.
  refresh(fromStart = false) {
    const all = Array.from({ length: this.set.count }, (_, image) => image);
    for (const chip of this.chips) {
      const [, condition] = this.conditions[chip.dataset.filter];
      chip.setAttribute("aria-pressed", chip.dataset.filter === this.filter);
      chip.querySelector("small").textContent = all.filter((image) => this.matches(image, condition)).length;
    }
    this.shown = all.filter((image) => this.matches(image, this.conditions[this.filter][1]));
    if (!this.shown.includes(this.image)) this.image = this.shown[0];
    this.drawGrid(fromStart);
    this.drawDetail();
  }

  drawGrid(fromStart) {
    const { set } = this;
    const sheet = set.versions.indexOf(this.version);
    const rows = Math.max(1, Math.ceil(set.count / set.columns) - 1);
    const thumbs = this.shown.map((image) => {
      const correct = set.isCorrect(image, this.version);
      const [x, y] = [(image % set.columns) / Math.max(1, set.columns - 1), Math.floor(image / set.columns) / rows];
      const words = `${set.className(set.label[image])}, ${correct ? "correct" : "incorrect"}`;
      return element(
        "div",
        { id: `image-${image}`, class: `thumb sheet-${set.number}-${sheet}`, role: "option", "aria-label": words, title: words, "aria-selected": image === this.image,
          style: `background-position:${100 * x}% ${100 * y}%`, onclick: () => this.select(image) },
        element("span", {}, correct ? "✓" : "✗"),
      );
    });
    this.grid.replaceChildren(...(thumbs.length ? thumbs : [element("p", { class: "note" }, "No image on the page fits these filters.")]));
    if (fromStart) this.grid.scrollTop = 0;
    this.grid.setAttribute("aria-activedescendant", this.image === undefined ? "" : `image-${this.image}`);
  }

  select(image) {
    document.getElementById(`image-${this.image}`)?.setAttribute("aria-selected", false);
    this.image = image;
    const chosen = document.getElementById(`image-${image}`);
    chosen.setAttribute("aria-selected", true);
    chosen.scrollIntoView({ block: "nearest" });
    this.grid.setAttribute("aria-activedescendant", `image-${image}`);
    this.drawDetail();
  }

  key(event) {
    const columns = getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.shown.length) return;
    event.preventDefault();
    const at = this.shown.indexOf(this.image) + steps[event.key];
    this.select(this.shown[Math.max(0, Math.min(this.shown.length - 1, at))]);
  }

  async drawDetail() {
    const { set, image } = this;
    if (image === undefined) {
      this.detail.replaceChildren();
      return;
    }
    const truth = set.className(set.label[image]);
    const parts = [element("h3", {}, `Image ${set.index[image]}: ${truth}`), await this.pictures(image)];
    if (this.image !== image || this.set !== set) return; // another image was chosen in the meantime
    parts.push(element("ul", { class: "says" }, ...this.says(image)));
    for (const version of set.versions) parts.push(this.bars(image, version));
    this.detail.replaceChildren(...parts.filter(Boolean));
  }

  // The versions of the image, and the magnified difference between the clean one and the one that is shown.
  async pictures(image) {
    const { set } = this;
    const pixels = await Promise.all(set.sheets.map((sheet) => this.pixels(sheet.address, image)));
    const figures = pixels.map((data, at) => figureOf(data, set.sheets[at].title));
    const shown = set.versions.indexOf(this.version) || set.versions.length - 1;
    if (shown > 0) {
      const { data, factor, largest } = magnified(pixels[0], pixels[shown]);
      figures.push(figureOf(data, largest ? `perturbation × ${factor}; at most ${largest} of 255 levels` : "no perturbation"));
    }
    const reduced = set.factor > 1 ? element("p", { class: "note" }, `Pictures are reduced by a factor of ${set.factor}.`) : null;
    const place = element("div", { class: "pictures" }, ...figures);
    return reduced ? element("div", {}, place, reduced) : place;
  }

  async pixels(address, image) {
    const { set } = this;
    if (!this.loaded.has(address)) {
      const picture = new Image();
      picture.src = address;
      this.loaded.set(address, picture.decode().then(() => picture));
    }
    const canvas = element("canvas", { width: set.width, height: set.height });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const [x, y] = [(image % set.columns) * set.width, Math.floor(image / set.columns) * set.height];
    context.drawImage(await this.loaded.get(address), x, y, set.width, set.height, 0, 0, set.width, set.height);
    return context.getImageData(0, 0, set.width, set.height);
  }

  // What the classifiers say about each version, in words.
  says(image) {
    const { set } = this;
    const lines = [];
    for (const [at, version] of set.versions.entries()) {
      const parts = set.isMixture ? ["g", "h", "model"] : ["model"];
      const title = set.sheets[at].title;
      const line = element("li", {}, `${title[0].toUpperCase()}${title.slice(1)}: `);
      parts.forEach((part, number) => line.append(number ? "; " : "", ...this.saying(image, version, part)));
      const alpha = set.isMixture ? set.alpha(image, version) : undefined;
      line.append(alpha === undefined || Number.isNaN(alpha) ? "." : `. α = ${alpha.toFixed(3)}.`);
      lines.push(line);
    }
    if (set.fooledBy?.[image] && set.fooledBy[image] !== "misclassified") lines.push(element("li", {}, `Fooled by: ${set.fooledBy[image]}.`));
    if (set.radius) lines.push(element("li", {}, set.radius[image] > 0 ? `Certified radius: ${set.radius[image].toFixed(3)}.` : "Not certified."));
    return lines;
  }

  saying(image, version, part) {
    const { set } = this;
    const label = set.predicted(image, version, part);
    const name = { g: "g", h: "h", model: set.isMixture ? "the mixture" : "the model" }[part];
    if (label === null || label === undefined) return [`${name}: incorrect`];
    const correct = label === set.label[image];
    const share = set.shares(image, version, part)?.[label] ?? (part === "model" ? undefined : set[`${version}_${part}_confidence`]?.[image]);
    const verdict = element("span", { class: correct ? "right" : "wrong" }, correct ? "✓ right" : "✗ wrong");
    return [`${name} says ${set.className(label)}${share === undefined ? "" : ` (${percent(share)})`} `, verdict];
  }

  // A table with a bar for each class and classifier.
  bars(image, version) {
    const { set } = this;
    const parts = set.isMixture ? ["g", "h", "model"] : ["model"];
    const shares = parts.map((part) => set.shares(image, version, part));
    if (shares.some((each) => each === null)) return null;
    const largest = shares[0].map((_, label) => Math.max(...shares.map((each) => each[label])));
    const truth = set.label[image];
    const order = largest.map((_, label) => label).sort((a, b) => (b === truth) - (a === truth) || largest[b] - largest[a]).slice(0, MOST_BARS);
    const colours = { g: "var(--g)", h: "var(--h)", model: "var(--mix)" };
    const heads = { g: "g", h: "h", model: set.isMixture ? "mixture" : "model" };
    const title = set.sheets[set.versions.indexOf(version)].title;
    const rows = order.map((label) =>
      element(
        "tr",
        { class: label === truth ? "true" : "" },
        element("th", { scope: "row", title: set.className(label) }, set.className(label)),
        ...parts.map((part, at) => element("td", {}, bar(shares[at][label], colours[part], `${version}-${part}-${label}`))),
      ),
    );
    const head = element("tr", {}, element("th", { scope: "col" }, title), ...parts.map((part) => element("th", { scope: "col" }, heads[part])));
    return element("table", { class: "bars" }, element("thead", {}, head), element("tbody", {}, ...rows));
  }
}

function bar(share, colour, key) {
  const fill = element("i");
  fill.style.width = `${100 * share}%`;
  fill.style.background = colour;
  const place = element("div", { class: "bar" }, fill);
  return element("div", { class: "share", "data-bar": key, "data-share": share.toFixed(5) }, place, element("b", {}, percent(share)));
}

function figureOf(data, caption) {
  const canvas = element("canvas", { width: data.width, height: data.height, role: "img", "aria-label": caption });
  canvas.getContext("2d").putImageData(data, 0, 0);
  return element("figure", {}, canvas, element("figcaption", {}, caption));
}

// The difference of two pictures around grey, magnified until the largest difference reaches black or white.
function magnified(clean, attacked) {
  const found = new ImageData(clean.width, clean.height);
  let largest = 0;
  const isColour = (at) => at % 4 !== 3;
  clean.data.forEach((value, at) => {
    if (isColour(at)) largest = Math.max(largest, Math.abs(attacked.data[at] - value));
  });
  const factor = largest ? Math.max(1, Math.floor(127 / largest)) : 1;
  clean.data.forEach((value, at) => {
    found.data[at] = isColour(at) ? 128 + factor * (attacked.data[at] - value) : 255;
  });
  return { data: found, factor, largest };
}
