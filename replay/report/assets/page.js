"use strict";
// Draws the plots from the specifications in the page, in the colours of the style sheet; again when these change.
const specs = JSON.parse(document.getElementById("plots").textContent);
const places = Object.keys(specs).map((name) => document.getElementById("plot-" + name));
const config = { displayModeBar: false, responsive: true, displaylogo: false };
const PRINT_WIDTH = 680;

function colours(printing) {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return printing ? { ink: "#111", grid: "#ddd" } : { ink: of("--ink"), grid: of("--grid") };
}

function themed(layout, printing) {
  const { ink, grid } = colours(printing);
  const themed = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: !printing,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: ink },
    margin: { l: 62, r: 16, t: layout.annotations ? 54 : 34, b: 48 },
    legend: { orientation: "h", x: 0, y: 1, yref: "container", yanchor: "top", ...layout.legend },
    hoverlabel: { namelength: -1 },
  };
  if (printing) themed.width = PRINT_WIDTH;
  const all = { ...themed, ...layout, legend: themed.legend };
  for (const key of Object.keys(all).filter((name) => /^[xy]axis/.test(name))) {
    all[key] = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true, ...all[key] };
  }
  return all;
}

function draw(printing) {
  for (const place of places) {
    const spec = specs[place.id.slice("plot-".length)];
    // Plotly writes into what it is given.
    const copy = JSON.parse(JSON.stringify(spec));
    Plotly.react(place, copy.data, themed(copy.layout, printing), config);
  }
}

draw(false);
document.documentElement.dataset.drawn = "yes";
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(false));
addEventListener("beforeprint", () => draw(true));
addEventListener("afterprint", () => draw(false));
