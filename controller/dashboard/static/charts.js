// Draws the trends with uPlot, in place of the SVG that a browser without scripts shows. The figures are in data-chart.
"use strict";
(() => {
  const plots = new Map();
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 16);
  // the figures above the chart: those under the cursor, else the latest
  const tell = (plot, unit) => {
    const figure = plot.root.closest("figure"), hit = plot.cursor.idx, last = plot.data[0].length - 1;
    const at = hit === null || hit === undefined ? last : hit;
    figure.querySelector(".at").textContent = at === last ? "" : `${clock(plot.data[0][at])} UTC`;
    figure.querySelectorAll(".series b").forEach((each, line) => {
      const value = plot.data[line + 1] && plot.data[line + 1][at];
      each.textContent = value === null || value === undefined ? "–" : `${Math.round(value)}${unit}`;
    });
  };

  const options = (chart, width) => {
    const ink = css("--soft"), grid = { stroke: css("--line"), width: 1 };
    const unit = chart.unit;
    return {
      width, height: 150,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      scales: { x: { range: [chart.from, chart.to] }, y: { range: [0, chart.top] } },
      cursor: { y: false, points: { size: 7 } },
      legend: { show: false },
      hooks: { setCursor: [(plot) => tell(plot, unit)] },
      axes: [
        { stroke: ink, grid, ticks: grid, size: 30, values: (_, at) => at.map(clock) },
        { stroke: ink, grid, ticks: grid, size: 56, values: (_, at) => at.map((y) => (Number.isInteger(y) ? `${y}${unit}` : "")) },
      ],
      series: [
        {},
        ...chart.series.map((each) => ({
          label: each.name, spanGaps: false, width: 2, stroke: css(`--c${each.colour % 10}`), points: { show: false },
        })),
      ],
    };
  };

  const draw = (place, afresh) => {
    const text = place.dataset.chart, known = plots.get(place);
    if (!afresh && known && known.text === text) return;
    const chart = JSON.parse(text), values = [chart.x, ...chart.series.map((each) => each.values)];
    const names = chart.series.map((each) => each.name).join();
    if (!afresh && known && known.names === names) {
      known.plot.setScale("x", { min: chart.from, max: chart.to });
      known.plot.setData(values, false);
      known.plot.setScale("y", { min: 0, max: chart.top });
      known.plot.redraw();
      plots.set(place, { ...known, text });
      return;
    }
    if (known) known.plot.destroy();
    place.replaceChildren();
    plots.set(place, { text, names, plot: new uPlot(options(chart, place.clientWidth), values, place) });
    sizes.observe(place);
  };

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const known = plots.get(target);
      if (known && target.clientWidth && target.clientWidth !== known.plot.width) known.plot.setSize({ width: target.clientWidth, height: 150 });
    }
  });

  const all = (afresh) => {
    for (const [place, { plot }] of plots) if (!place.isConnected) { plot.destroy(); plots.delete(place); }
    for (const place of document.querySelectorAll(".plot")) draw(place, afresh);
  };
  new MutationObserver(() => all(false)).observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-chart"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all(true));
  all(false);
})();
