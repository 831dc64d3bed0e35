// Puts the page together.

function themeMenu() {
  const menu = document.getElementById("theme");
  menu.addEventListener("change", () => {
    if (menu.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = menu.value;
  });
}

// The charts of one evaluation at a time, and that of all certifications. Returns a function that draws them.
function showCharts(evaluations, certified) {
  if (!evaluations.length && !certified.length) return () => {};
  const section = document.getElementById("charts");
  const place = section.querySelector(".charts");
  let run = evaluations[0];
  const draw = () => {
    const others = certified.length ? [certifiedChart(certified)] : [];
    place.replaceChildren(...others, ...(run ? runCharts(run) : []));
  };
  const choose = (at) => ((run = evaluations[at]), draw());
  if (evaluations.length > 1) {
    const options = evaluations.map((each, at) => element("option", { value: at }, each.name));
    const menu = element("select", { id: "chart-run", onchange: () => choose(menu.value) }, ...options);
    place.before(element("label", { class: "pick" }, "Run", menu));
  }
  section.hidden = false;
  return draw;
}

function main() {
  themeMenu();
  if (DATA.differences.length) document.getElementById("differences").append(differenceTable(DATA.differences));
  addTableTools();
  const dials = DATA.dials.map((raw) => new Dial({ ...raw, norm: DATA.runs[raw.runs[0][1]].norm }));
  const images = DATA.runs.some((run) => run.pictures) ? new ImageSection(DATA.runs, dials) : null;
  const dial = dials.length ? new DialSection(dials, images) : null;
  const certified = DATA.runs.filter((run) => run.certified && run.certified.length > 1);
  const draw = showCharts(DATA.runs.filter((run) => run.waterfall), certified.length > 1 ? certified : []);
  draw();
  NARROW.addEventListener("change", () => {
    dial?.choose(dial.dials.indexOf(dial.dial));
    draw();
  });
  for (const link of document.querySelectorAll("nav a")) link.hidden = document.querySelector(link.hash).hidden;
}

main();
