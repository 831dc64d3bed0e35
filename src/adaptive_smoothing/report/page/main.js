// Puts the page together.

function themeMenu() {
  const menu = document.getElementById("theme");
  menu.addEventListener("change", () => {
    if (menu.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = menu.value;
  });
}

// The charts of one evaluation at a time, and those of all certifications.
function showCharts(evaluations, others) {
  if (!evaluations.length && !others.length) return;
  const section = document.getElementById("charts");
  const place = section.querySelector(".charts");
  const show = (run) => place.replaceChildren(...others, ...(run ? runCharts(run) : []));
  if (evaluations.length > 1) {
    const options = evaluations.map((run, at) => element("option", { value: at }, run.name));
    const menu = element("select", { id: "chart-run", onchange: () => show(evaluations[menu.value]) }, ...options);
    place.before(element("label", { class: "pick" }, "Run", menu));
  }
  section.hidden = false;
  show(evaluations[0]);
}

function main() {
  themeMenu();
  if (DATA.differences.length) document.getElementById("differences").append(differenceTable(DATA.differences));
  addTableTools();
  const dials = DATA.dials.map((raw) => new Dial({ ...raw, norm: DATA.runs[raw.runs[0][1]].norm }));
  const images = DATA.runs.some((run) => run.pictures) ? new ImageSection(DATA.runs, dials) : null;
  if (dials.length) new DialSection(dials, images);
  const certified = DATA.runs.filter((run) => run.certified && run.certified.length > 1);
  showCharts(DATA.runs.filter((run) => run.waterfall), certified.length > 1 ? [certifiedChart(certified)] : []);
  for (const link of document.querySelectorAll("nav a")) link.hidden = document.querySelector(link.hash).hidden;
}

main();
