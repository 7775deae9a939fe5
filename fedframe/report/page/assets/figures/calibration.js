// Confidence against accuracy: on the diagonal, a model is right as often as it says.

figures.calibration = {
  draw(data, tools) {
    const bins = data.bins.map(([from, to, samples, confidence, accuracy]) => ({ from, to, samples, confidence, accuracy,
      title: `${percent(from, 0)} to ${percent(to, 0)} sure\nright: ${percent(accuracy)}\n${count(samples)} test samples` }));
    const size = Math.min(tools.width, 460);
    return [
      make("p", { class: "small-read" }, "Expected calibration error: ", make("b", {}, `${(100 * data.error).toFixed(1)} points`)),
      plot({
        width: size, height: size * 0.86, aspectRatio: undefined,
        x: { label: "how sure the model was (%)", domain: [0, 1], tickFormat: (value) => String(Math.round(100 * value)), ticks: 5 },
        y: { label: "how often it was right (%)", domain: [0, 1], tickFormat: (value) => String(Math.round(100 * value)), ticks: 5 },
        r: { range: [0, 11] },
        marks: [
          gridX({ ticks: 5 }), gridY({ ticks: 5 }),
          Plot.line([[0, 0], [1, 1]], { stroke: theme.style("--dim"), strokeDasharray: "4 4" }),
          Plot.rectY(bins, { x1: "from", x2: "to", y: "accuracy", fill: theme.series(0), fillOpacity: 0.18, insetLeft: 1, insetRight: 1 }),
          Plot.link(bins, { x1: "confidence", x2: "confidence", y1: "confidence", y2: "accuracy", stroke: theme.series(1), strokeWidth: 2 }),
          Plot.dot(bins, { x: "confidence", y: "accuracy", r: (b) => b.samples, fill: theme.series(0), stroke: theme.style("--card") }),
          Plot.tip(bins, Plot.pointer({ x: "confidence", y: "accuracy", maxRadius: Infinity, title: "title", ...tipLook() })),
        ],
      }),
      make("p", { class: "note" }, "The area of a point grows with the number of predictions in it."),
    ];
  },
  table: (data) => ({ columns: ["from", "to", "test samples", "mean confidence", "accuracy"], rows: data.bins }),
};
