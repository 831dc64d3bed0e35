// The images of the runs: filters, and a grid from which one image is chosen.

class ImageSection {
  constructor(runs, dials) {
    const made = runs.map((run, number) => (run.pictures ? new ImageSet(run, number, dials) : null));
    this.sets = made.filter(Boolean);
    document.getElementById("images").hidden = false;
    this.grid = document.getElementById("image-grid");
    this.filters = document.getElementById("image-filters");
    this.detail = new ImageDetail(document.getElementById("image-detail"));
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.addSheets();
    this.choose(0);
  }

  // One rule of style for each sheet, so that its address is on the page once.
  addSheets() {
    const rule = (set, sheet, at) =>
      `.sheet-${set.number}-${at}{background-image:url(${sheet.address});background-size:${100 * set.columns}% auto}`;
    const rules = this.sets.flatMap((set) => set.sheets.map((sheet, at) => rule(set, sheet, at)));
    document.head.append(element("style", {}, rules.join("\n")));
  }

  choose(number) {
    this.set = this.sets[number];
    Object.assign(this, { filter: "all", label: "", attack: "", version: this.set.versions.at(-1) });
    this.build();
    this.image = this.firstImage();
    this.refresh(true);
  }

  // An image that shows what mixing is good for, if there is one.
  firstImage() {
    const [, condition] = this.conditions.saved ?? this.conditions.all;
    return Array.from({ length: this.set.count }, (_, image) => image).find(condition);
  }

  build() {
    this.conditions = this.set.filters();
    this.chips = Object.entries(this.conditions).map(([key, [title]]) => {
      const look = { type: "button", "data-filter": key, onclick: () => this.setFilter(key) };
      return element("button", look, title, element("small"));
    });
    const chips = element("div", { class: "chips", role: "group", "aria-label": "Filters" }, ...this.chips);
    this.filters.replaceChildren(...this.menus(), chips, ...this.notes());
    const run = this.filters.querySelector("#image-run");
    if (run) run.value = this.sets.indexOf(this.set);
  }

  notes() {
    if (!this.set.isMixture) return [];
    const mixed = "g and h are shown as they are mixed: with the scales of the mixture";
    return [element("p", { class: "note" }, `${mixed}, and with the mixer's own logits of h if it has them.`)];
  }

  menus() {
    const { set } = this;
    const runs = this.sets.map((each, at) => [at, each.run.name]);
    const shown = set.versions.map((version) => [version, set.titleOf(version)]).reverse();
    const labels = [...new Set(set.label)].sort((a, b) => a - b).map((label) => [label, set.className(label)]);
    const attacks = [...new Set(set.fooledBy || [])].filter((title) => title && title !== "misclassified").sort();
    const showVersion = (value) => ((this.version = value), this.refresh());
    const showClass = (value) => ((this.label = value), this.refresh(true));
    const showAttack = (value) => ((this.attack = value), this.refresh(true));
    const attackOptions = [["", "any or none"], ...attacks.map((title) => [title, title])];
    return [
      runs.length > 1 && menuOf("Run", "image-run", runs, (value) => this.choose(Number(value))),
      shown.length > 1 && menuOf("Show", "image-version", shown, showVersion),
      menuOf("Class", "image-class", [["", "all classes"], ...labels], showClass),
      attacks.length && menuOf("Attack that succeeded", "image-attack", attackOptions, showAttack),
    ].filter(Boolean);
  }

  // Whether there are images of the mixture that this dial moves.
  has(dial) {
    return this.sets.some((set) => set.dial === dial);
  }

  // Called when a dial was moved.
  moved(dial) {
    if (this.set.dial === dial) this.refresh();
  }

  showMoved(dial) {
    if (this.set.dial !== dial) this.choose(this.sets.findIndex((set) => set.dial === dial));
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
    this.detail.show(this.set, this.image, this.version);
  }

  drawGrid(fromStart) {
    const nothing = element("p", { class: "note" }, "No image on the page fits these filters.");
    const thumbs = this.shown.map((image) => this.thumb(image));
    this.grid.replaceChildren(...(thumbs.length ? thumbs : [nothing]));
    if (fromStart) this.grid.scrollTop = 0;
    this.markActive();
  }

  thumb(image) {
    const { set } = this;
    const [column, row] = [image % set.columns, Math.floor(image / set.columns)];
    const rows = Math.ceil(set.count / set.columns);
    const share = (at, count) => (100 * at) / Math.max(1, count - 1);
    const good = set.isCertified ? set.isCertifiedAt(image) : set.isCorrect(image, this.version);
    const state = set.isCertified ? ["not certified", "certified"] : ["incorrect", "correct"];
    const words = `${set.className(set.label[image])}, ${state[Number(good)]}`;
    const look = {
      id: `image-${image}`, class: `thumb sheet-${set.number}-${set.versions.indexOf(this.version)}`, role: "option",
      "aria-label": words, title: words, "aria-selected": String(image === this.image),
      style: `background-position:${share(column, set.columns)}% ${share(row, rows)}%`,
      onclick: () => this.select(image),
    };
    return element("div", look, element("span", { "aria-hidden": "true" }, good ? "✓" : "✗"));
  }

  markActive() {
    if (this.image === undefined) this.grid.removeAttribute("aria-activedescendant");
    else this.grid.setAttribute("aria-activedescendant", `image-${this.image}`);
  }

  select(image) {
    document.getElementById(`image-${this.image}`)?.setAttribute("aria-selected", false);
    this.image = image;
    const chosen = document.getElementById(`image-${image}`);
    chosen.setAttribute("aria-selected", true);
    chosen.scrollIntoView({ block: "nearest" });
    this.markActive();
    this.detail.show(this.set, image, this.version);
  }

  key(event) {
    const columns = getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -Infinity, End: Infinity,
    };
    if (!(event.key in steps) || !this.shown.length) return;
    event.preventDefault();
    const at = this.shown.indexOf(this.image) + steps[event.key];
    this.select(this.shown[Math.max(0, Math.min(this.shown.length - 1, at))]);
  }
}

// A labelled menu; `change` is called with the value that is chosen.
function menuOf(title, id, options, change) {
  const items = options.map(([value, text]) => element("option", { value }, text));
  const menu = element("select", { id, onchange: () => change(menu.value) }, ...items);
  return element("label", {}, title, menu);
}
