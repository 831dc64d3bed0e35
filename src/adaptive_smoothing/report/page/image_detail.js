// One image with everything that is known about it: its pictures, what the classifiers say, and bars.

const MOST_BARS = 5;
const PART_COLOURS = { g: "var(--g)", h: "var(--h)", model: "var(--mix)" };

class ImageDetail {
  constructor(place) {
    this.place = place;
    this.loaded = new Map();
  }

  // Shows an image of a set, or nothing; `version` is the one whose perturbation is magnified.
  async show(set, image, version) {
    const wanted = [set, image];
    this.wanted = wanted;
    if (image === undefined) {
      this.place.replaceChildren();
      return;
    }
    const pictures = await this.pictures(set, image, version);
    if (this.wanted !== wanted) return; // another image was chosen in the meantime
    this.place.replaceChildren(
      ...[element("h3", {}, `Image ${set.index[image]}: ${set.className(set.label[image])}`),
        pictures,
        element("ul", { class: "says" }, ...saysOf(set, image)),
        ...set.versions.map((each) => barTable(set, image, each))].filter(Boolean),
    );
  }

  // The versions of the image, and the magnified difference between the clean one and the one that is shown.
  async pictures(set, image, version) {
    const pixels = await Promise.all(set.sheets.map((sheet) => this.pixels(set, sheet.address, image)));
    const figures = pixels.map((data, at) => figureOf(data, set.sheets[at].title));
    const shown = set.versions.indexOf(version) || set.versions.length - 1;
    if (shown > 0) {
      const { data, factor, largest } = magnified(pixels[0], pixels[shown]);
      const caption = `perturbation × ${factor}; at most ${largest} of 255 levels`;
      figures.push(figureOf(data, largest ? caption : "no perturbation"));
    }
    const place = element("div", { class: "pictures" }, ...figures);
    if (set.factor === 1) return place;
    const note = element("p", { class: "note" }, `Pictures are reduced by a factor of ${set.factor}.`);
    return element("div", {}, place, note);
  }

  async pixels(set, address, image) {
    if (!this.loaded.has(address)) {
      const picture = new Image();
      picture.src = address;
      this.loaded.set(address, picture.decode().then(() => picture));
    }
    const { width, height } = set;
    const context = element("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
    const [x, y] = [(image % set.columns) * width, Math.floor(image / set.columns) * height];
    context.drawImage(await this.loaded.get(address), x, y, width, height, 0, 0, width, height);
    return context.getImageData(0, 0, width, height);
  }
}

// What the classifiers say about each version, in words.
function saysOf(set, image) {
  const lines = set.versions.map((version) => {
    const title = set.titleOf(version);
    const line = element("li", {}, `${sentence(title)}: `);
    set.parts.forEach((part, number) => line.append(number ? "; " : "", ...saying(set, image, version, part)));
    const alpha = set.isMixture ? set.alpha(image, version) : undefined;
    line.append(alpha === undefined || Number.isNaN(alpha) ? "." : `. α = ${alpha.toFixed(3)}.`);
    return line;
  });
  const attack = set.fooledBy?.[image];
  if (attack && attack !== "misclassified") lines.push(element("li", {}, `Fooled by: ${attack}.`));
  if (set.isCertified) {
    const radius = set.radius[image];
    lines.push(element("li", {}, radius > 0 ? `Certified radius: ${radius.toFixed(3)}.` : "Not certified."));
  }
  return lines;
}

function saying(set, image, version, part) {
  const label = set.predicted(image, version, part);
  const name = { g: "g", h: "h", model: set.isMixture ? "the mixture" : "the model" }[part];
  if (label === null || label === undefined) return [`${name}: `, element("span", { class: "wrong" }, "✗ wrong")];
  const share = set.shares(image, version, part)?.[label] ?? confidence(set, image, version, part);
  const correct = label === set.label[image];
  const verdict = element("span", { class: correct ? "right" : "wrong" }, correct ? "✓ right" : "✗ wrong");
  return [`${name} says ${set.className(label)}${share === undefined ? "" : ` (${percent(share)})`} `, verdict];
}

// The stored confidence. That of a mixture is valid where it was measured only.
function confidence(set, image, version, part) {
  const moved = part === "model" && set.isMoving && set.dial.setting !== set.own;
  return moved ? undefined : set[`${version}_${part}_confidence`]?.[image];
}

// A table with a bar for each class and classifier; null without probabilities.
function barTable(set, image, version) {
  const shares = set.parts.map((part) => set.shares(image, version, part));
  if (shares.some((each) => each === null)) return null;
  const heads = { g: "g", h: "h", model: set.isMixture ? "mixture" : "model" };
  const head = [set.titleOf(version), ...set.parts.map((part) => heads[part])];
  const rows = shownClasses(shares, set.label[image]).map((label) => {
    const name = set.className(label);
    const bars = set.parts.map((part, at) => {
      const key = `${version}-${part}-${label}`;
      return element("td", {}, bar(shares[at][label], PART_COLOURS[part], key));
    });
    const look = { class: label === set.label[image] ? "true" : "" };
    return element("tr", look, element("th", { scope: "row", title: name }, name), ...bars);
  });
  return element(
    "table",
    { class: "bars" },
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows),
  );
}

// The correct class, and those with the largest shares.
function shownClasses(shares, truth) {
  const largest = shares[0].map((_, label) => Math.max(...shares.map((each) => each[label])));
  const order = (a, b) => (b === truth) - (a === truth) || largest[b] - largest[a];
  return largest.map((_, label) => label).sort(order).slice(0, MOST_BARS);
}

function bar(share, colour, key) {
  const fill = element("i");
  fill.style.width = `${100 * share}%`;
  fill.style.background = colour;
  const look = { class: "share", "data-bar": key, "data-share": share.toFixed(5) };
  return element("div", look, element("div", { class: "bar" }, fill), element("b", {}, percent(share)));
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
