// The pictures of one run, and what g, h and the mixture say about each of them.

class ImageSet {
  constructor(run, number, dials) {
    const raw = run.pictures;
    Object.assign(this, raw, { run, number });
    for (const [name, value] of Object.entries(raw)) if (value?.bytes) this[name] = readArray(value);
    const stored = Object.entries(raw.probabilities || {});
    this.probabilities = Object.fromEntries(stored.map(([name, packed]) => [name, readArray(packed)]));
    this.dial = dials.find((dial) => dial.runs.some(([, run]) => run === number));
    this.own = this.dial ? this.dial.runs.find(([, run]) => run === number)[0] : null;
    this.isMixture = "clean_g" in this.probabilities || "clean_g_prediction" in this;
    this.isCertified = "radius" in this;
    this.versions = raw.sheets.map((sheet) => sheet.key);
    this.parts = this.isMixture ? ["g", "h", "model"] : ["model"];
  }

  className(label) {
    return this.classes[label] ?? String(label);
  }

  titleOf(version) {
    return this.sheets[this.versions.indexOf(version)].title;
  }

  // The share of each class according to g, h or the mixture (`model`); null if they were not stored.
  shares(image, version, part) {
    if (part === "model" && this.isMoving && `${version}_g` in this.probabilities) {
      const alpha = this.alpha(image, version);
      const [g, h] = ["g", "h"].map((base) => this.shares(image, version, base));
      return g.map((share, label) => (1 - alpha) * share + alpha * h[label]);
    }
    const stored = this.probabilities[`${version}_${part}`];
    if (!stored) return null;
    const count = stored.length / this.count;
    return Array.from(stored.subarray(image * count, (image + 1) * count), (share) => share / FULL);
  }

  // Whether the slider moves the mixture. A radius does not change its predictions.
  get isMoving() {
    return Boolean(this.dial) && this.dial.parameter !== "radius";
  }

  alpha(image, version) {
    const { dial } = this;
    if (!this.isMoving) return this[`${version}_alpha`]?.[image];
    return dial.alphaOf(dial.setting, this[`${version}_score`]?.[image], this.point);
  }

  // Whether the mixture or the model is correct at the setting of the dial.
  isCorrect(image, version, setting = this.dial?.setting) {
    const { dial } = this;
    if (!this.isMoving) return this.prediction_of(image, version) === this.label[image];
    const row = this.row[image];
    if (version === "clean") return dial.clean.at(setting, row);
    return dial.attacked.find((each) => [version, String(this.number)].includes(each.key)).at(setting, row);
  }

  // Whether an image is certified and correct at the radius of the dial.
  isCertifiedAt(image) {
    return this.dial ? this.dial.clean.at(this.dial.setting, this.row[image]) : this.radius[image] > 0;
  }

  prediction_of(image, version) {
    return (version === "clean" ? this.prediction : this.attackedPrediction)[image];
  }

  // The class that g, h or the mixture predicts; null where it is known to be another than the correct one only.
  predicted(image, version, part) {
    const shares = this.shares(image, version, part);
    if (part !== "model") return this[`${version}_${part}_prediction`]?.[image] ?? best(shares);
    if (!this.isMoving) return this.prediction_of(image, version);
    const label = this.label[image];
    if (this.isCorrect(image, version)) return label;
    if (!shares) return this.dial.setting === this.own ? this.prediction_of(image, version) : null;
    return best(shares.map((share, each) => (each === label ? -1 : share)));
  }

  // Filters of images by name: a title, and a condition.
  filters() {
    const attacked = this.versions.find((version) => version !== "clean");
    return {
      all: ["all", () => true],
      ...(this.isMixture ? this.baseFilters(attacked) : {}),
      ...(attacked ? this.attackFilters(attacked) : {}),
      ...(this.isCertified ? this.certifiedFilters() : {}),
      wrong: ["misclassified", (image) => !this.isCorrect(image, "clean")],
      ...(this.isMoving ? { moved: ["changed by the slider", (image) => this.hasMoved(image)] } : {}),
    };
  }

  // What g and h are right about, and the mixture is or is not.
  baseFilters(attacked) {
    const base = (image, version, part) => this.predicted(image, version, part) === this.label[image];
    const mixed = (image) => this.isCorrect(image, "clean") && this.isCorrect(image, attacked);
    const found = {
      disagree: ["g right, h wrong", (image) => base(image, "clean", "g") && !base(image, "clean", "h")],
    };
    if (!attacked) return found;
    found.saved = ["saved by h", (image) => mixed(image) && !base(image, attacked, "g")];
    found.lost = ["lost by mixing", (image) => base(image, attacked, "h") && !this.isCorrect(image, attacked)];
    return found;
  }

  attackFilters(attacked) {
    const clean = (image) => this.isCorrect(image, "clean");
    return {
      fooled: ["fooled by the attack", (image) => clean(image) && !this.isCorrect(image, attacked)],
      robust: ["robust", (image) => clean(image) && this.isCorrect(image, attacked)],
    };
  }

  certifiedFilters() {
    return {
      certified: ["certified", (image) => this.isCertifiedAt(image)],
      uncertified: ["not certified", (image) => !this.isCertifiedAt(image)],
    };
  }

  // Whether the clean image changed sides, as the number next to the slider counts.
  hasMoved(image) {
    const { setting, start } = this.dial;
    return this.isCorrect(image, "clean", setting) !== this.isCorrect(image, "clean", start);
  }
}

function best(shares) {
  return shares.indexOf(Math.max(...shares));
}
