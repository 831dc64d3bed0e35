// Puts the page together.

function themeMenu() {
  const menu = document.getElementById("theme");
  menu.addEventListener("change", () => {
    if (menu.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = menu.value;
  });
}

function main() {
  themeMenu();
  if (DATA.differences.length) document.getElementById("differences").append(differenceTable(DATA.differences));
  addTableTools();
  const dials = DATA.dials.map((raw) => new Dial({ ...raw, norm: DATA.runs[Object.values(raw.runs)[0]].norm }));
  const images = DATA.runs.some((run) => run.pictures) ? new ImageSection(DATA.runs, dials) : null;
  if (dials.length) new DialSection(dials, (dial) => images?.set.dial === dial && images.refresh());
  const certified = DATA.runs.filter((run) => run.certified && run.certified.length > 1);
  const charts = [...DATA.runs.flatMap(runCharts), ...(certified.length > 1 ? [certifiedChart(certified)] : [])];
  if (charts.length) {
    document.getElementById("charts").hidden = false;
    document.querySelector("#charts .charts").append(...charts);
  }
  for (const link of document.querySelectorAll("nav a")) link.hidden = document.querySelector(link.hash).hidden;
}

main();
