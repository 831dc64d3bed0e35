// Saves charts as SVG and PNG, and copies tables as Markdown, CSV and LaTeX.

const STYLED = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "opacity"];

function saveButtons(svg, title) {
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const save = (kind, run) => {
    const look = { type: "button", onclick: run, "aria-label": `Save ${title} as ${kind}` };
    return element("button", look, `Save ${kind}`);
  };
  return element(
    "div",
    { class: "tools" },
    save("SVG", () => download(svgAddress(svg), `${name}.svg`)),
    save("PNG", () => savePng(svg, `${name}.png`)),
  );
}

// Returns the chart as a file of its own, with the colours and fonts that the page gives it.
function svgText(svg) {
  const copy = svg.cloneNode(true);
  const [before, after] = [svg, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  before.forEach((each, at) => {
    const look = getComputedStyle(each);
    for (const name of STYLED) after[at].setAttribute(name, look.getPropertyValue(name));
    after[at].removeAttribute("class");
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  copy.setAttribute("xmlns", NAMESPACE);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim();
  copy.prepend(shape("rect", { width, height, fill: paper }));
  return new XMLSerializer().serializeToString(copy);
}

function svgAddress(svg) {
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
}

async function savePng(svg, name) {
  const picture = new Image();
  picture.src = svgAddress(svg);
  await picture.decode();
  const canvas = element("canvas");
  [canvas.width, canvas.height] = [2 * picture.width, 2 * picture.height];
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  download(canvas.toDataURL("image/png"), name);
}

function download(address, name) {
  element("a", { href: address, download: name }).click();
  say(`Saved ${name}`);
}

function cellsOf(table) {
  return [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.replace(/\u00a0/g, " ").trim()));
}

const FORMATS = {
  Markdown: ([head, ...rows]) => {
    const line = (cells) => `| ${cells.map((cell) => cell.replace(/\|/g, "\\|")).join(" | ")} |`;
    return [line(head), line(head.map((_, at) => (at ? "---:" : "---"))), ...rows.map(line)].join("\n");
  },
  CSV: (rows) => {
    const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replace(/"/g, '""')}"` : cell);
    return rows.map((row) => row.map(quoted).join(",")).join("\n");
  },
  LaTeX: ([head, ...rows]) => {
    const line = (cells) => `${cells.map(latex).join(" & ")} \\\\`;
    const top = [`\\begin{tabular}{l${"r".repeat(head.length - 1)}}`, "\\toprule", line(head), "\\midrule"];
    return [...top, ...rows.map(line), "\\bottomrule", "\\end{tabular}"].join("\n");
  },
};

function latex(text) {
  const special = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    "±": "$\\pm$", "−": "$-$", "–": "--",
    "α": "$\\alpha$", "σ": "$\\sigma$", "≈": "$\\approx$", "≥": "$\\ge$", "≤": "$\\le$",
  };
  return text.replace(/[\\~^±−–ασ≈≥≤]|[&%$#_{}]/g, (letter) => special[letter] || `\\${letter}`);
}

function addTableTools() {
  for (const figure of document.querySelectorAll("figure.table")) {
    const table = figure.querySelector("table");
    const title = figure.querySelector("figcaption").textContent;
    const tools = Object.entries(FORMATS).map(([name, write]) => {
      const run = () => copy(write(cellsOf(table)), name);
      const look = { type: "button", "aria-label": `Copy ${title} as ${name}`, onclick: run };
      return element("button", look, `Copy ${name}`);
    });
    figure.append(element("div", { class: "tools" }, ...tools));
  }
}

// Pages that are opened as a file have no clipboard in some browsers; a selected text box works everywhere.
async function copy(text, name) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = element("textarea", { style: "position:fixed;top:0;opacity:0" });
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  copy.last = text;
  say(`Copied as ${name}`);
}
