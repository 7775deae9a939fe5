// Neural collapse: a small picture per measure, all methods in each, and the final values.

const NEGLIGIBLE = 0.01; // below it a measure is as good as zero, and its line shall lie there

figures.collapse = {
  controls: () => [],
  draw(data, tools) {
    const labels = [...new Set([...data.panels.flatMap((panel) => panel.series.map(({ label }) => label)), ...data.final.map(({ label }) => label)])];
    const columns = tools.width > 900 ? 3 : tools.width > 560 ? 2 : 1;
    const width = (tools.width - 20 * (columns - 1)) / columns;
    const pictures = data.panels.map((panel) => make("div", {}, make("h3", {}, panel.label), make("p", { class: "small-read" }, panel.read),
      lineChart({ panel: { ...panel, label: "" }, zero: true, least: NEGLIGIBLE, width, height: 200, hidden: tools.hidden, colourOf: (i) => labels.indexOf(panel.series[i].label) })));
    const grid = make("div", { class: "trio" }, pictures);
    grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    const keys = Object.keys(data.names).filter((key) => data.final.some(({ values }) => known(values[key])));
    const final = drawTable({ columns: ["saved model", ...data.final.map(({ label }) => label)], rows: keys.map((key) => [data.names[key][0], ...data.final.map(({ values }) => values[key])]) });
    final.className = "figure-table";
    return [labels.length > 1 ? drawLegend(labels.map((label, index) => ({ label, index })), tools.hidden, tools.toggle) : null, pictures.length ? grid : null,
      data.final.length ? final : null, data.note ? make("p", { class: "note" }, data.note) : null];
  },
  table(data) {
    const lines = lineTable(data.panels);
    const final = data.final.flatMap(({ label, values }) => Object.entries(values).map(([key, value]) => [data.names[key][0], label, "saved model", null, null, value, null, null]));
    return { columns: lines.columns, rows: [...lines.rows, ...final] };
  },
};
