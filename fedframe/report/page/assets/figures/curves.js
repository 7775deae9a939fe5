// Learning curves: what is shown, over what, and which lines.

figures.curves = {
  controls: (data) => [
    { key: "panel", label: "Show", options: data.panels.map(({ key, label }) => [key, label]) },
    { key: "over", label: "Over", options: [["rounds", "rounds"], ["seconds", "seconds"], ["megabytes", "megabytes"]] },
  ],
  draw(data, tools) {
    const panel = data.panels.find(({ key }) => key === tools.get("panel"));
    const write = panel.share ? percent : number;
    const entries = panel.series.map((line, index) => ({ label: line.label, index, value: write(line.points.at(-1)[3]) }));
    return [
      panel.read ? make("p", { class: "small-read" }, panel.read) : null,
      drawLegend(entries, tools.hidden, tools.toggle),
      lineChart({ panel, over: tools.get("over"), width: tools.width, height: tools.width > 700 ? 400 : 280, hidden: tools.hidden }),
      ...lineNotes(panel, tools.get("over"), tools.hidden),
    ];
  },
  table: (data) => lineTable(data.panels),
};
