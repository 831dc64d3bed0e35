"use strict";
// Reads the data of the page, and computes what holds at a setting of a dial.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ARRAYS = { u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };
const FULL = 65535; // the largest probability

function readArray(packed) {
  const bytes = Uint8Array.from(atob(packed.bytes), (letter) => letter.charCodeAt(0));
  if (packed.type !== "bits") return new ARRAYS[packed.type](bytes.buffer);
  return Uint8Array.from({ length: packed.length }, (_, at) => (bytes[at >> 3] >> (at & 7)) & 1);
}

// An image is correct from the setting `first` to the setting `last`.
class Correct {
  constructor(raw) {
    this.key = raw.key;
    this.first = readArray(raw.first);
    this.last = readArray(raw.last);
  }

  at(setting, image) {
    return this.first[image] <= setting && setting <= this.last[image];
  }
}

class Dial {
  constructor(raw) {
    Object.assign(this, raw);
    this.clean = new Correct(raw.clean);
    this.attacked = raw.attacked.map((each) => new Correct(each));
    this.cleanCounts = this.counts(this.clean);
    this.attackedSettings = [...new Set(raw.runs.map(([setting]) => setting))].sort((a, b) => a - b);
    this.setting = this.start;
  }

  // How many images are correct at each setting.
  counts(correct) {
    const changes = new Int32Array(this.grid.length + 1);
    for (let image = 0; image < this.images; image += 1) {
      if (correct.first[image] > correct.last[image]) continue;
      changes[Math.max(0, correct.first[image])] += 1;
      changes[correct.last[image] + 1] -= 1;
    }
    let sum = 0;
    return Array.from(changes.subarray(0, this.grid.length), (change) => (sum += change));
  }

  // A stored mixture was not attacked: only its clean accuracy is known.
  get hasAttacks() {
    return this.attacked.length > 0;
  }

  wasAttacked(setting) {
    return String(setting) in this.robust;
  }

  // How many images are robust where the mixture was attacked; elsewhere how many survive the stored attacks.
  robustCount(setting) {
    return this.wasAttacked(setting) ? this.robust[setting] : this.bounds[setting];
  }

  share(count) {
    return count / this.images;
  }

  // The largest setting with at least this clean accuracy; -1 if there is none.
  largestWith(accuracy) {
    return this.cleanCounts.findLastIndex((count) => this.share(count) >= accuracy - 1e-9);
  }

  // The alpha of an image with this score at a setting; of an alpha that all images share, the setting itself.
  alphaOf(setting, score, point) {
    if (this.parameter !== "shift") return this.grid[setting];
    const [low, high] = point.range;
    return low + (high - low) / (1 + Math.exp(-(score + this.grid[setting])));
  }

  // How many images change sides between the setting where the slider began and the present one.
  changes() {
    let [gained, lost] = [0, 0];
    for (let image = 0; image < this.images; image += 1) {
      const [before, now] = [this.clean.at(this.start, image), this.clean.at(this.setting, image)];
      gained += !before && now;
      lost += before && !now;
    }
    return { gained, lost };
  }

  get parameterName() {
    return { alpha: "α", shift: "shift", radius: `${this.norm || ""} radius`.trim() }[this.parameter];
  }

  words(setting = this.setting) {
    return `${this.parameterName} = ${this.grid[setting].toFixed(this.parameter === "shift" ? 2 : 3)}`;
  }
}

// Returns a text that begins with a capital letter.
function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}`;
}

function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)} %`;
}

function points(share, digits = 1) {
  return `${share >= 0 ? "+" : "−"}${Math.abs(100 * share).toFixed(digits)}`;
}

function whole(number) {
  return number.toLocaleString("en");
}

// Returns an element with attributes, listeners (`onclick`, ...) and children.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function say(text) {
  const place = document.getElementById("message");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), 2500);
}
