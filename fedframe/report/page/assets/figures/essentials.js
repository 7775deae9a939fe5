// The essentials: verdict, scores with intervals, who gains, a small confusion matrix, what left the sites.

figures.essentials = {
  draw(data, tools) {
    const [first, ...rest] = data.verdict;
    const top = [make("p", { class: "verdict" }, first), ...rest.map((text) => make("p", { class: "said" }, text))];
    const scores = data.scores.length ? drawTable({
      columns: ["score", page.data.metric, "95 % interval", "test samples"],
      rows: data.scores.map(({ label, value: [value, low, high], samples }) => [label, percent(value), known(low) ? `${percent(low)} to ${percent(high)}` : DASH, known(samples) ? count(samples) : DASH]),
    }) : null;
    const answers = [["Who gains", data.gain], ["What left the sites", data.left]].filter(([, text]) => text);
    const list = make("dl", { class: "facts" }, answers.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
    const matrix = data.confusion && make("div", {}, make("h3", {}, `Right and wrong: ${data.confusion.of}, in samples`), smallMatrix(data.confusion));
    const left = [scores, data.easier ? make("p", { class: "note" }, data.easier) : null].filter(Boolean);
    const middle = matrix && left.length ? make("div", { class: "pair" }, make("div", {}, left), matrix) : make("div", {}, left);
    return [...top, middle, list];
  },
};

function smallMatrix({ classes, counts }) {
  const head = make("tr", {}, make("th", { scope: "col" }, "true class"), classes.map((name) => make("th", { scope: "col" }, `said ${name}`)), make("th", { scope: "col" }, "all"));
  const body = counts.map((row, r) => make("tr", {}, make("th", { scope: "row" }, classes[r]),
    row.map((cell, c) => make("td", { class: r === c ? "good" : cell ? "bad" : null }, count(cell))), make("td", {}, count(d3.sum(row)))));
  return make("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Confusion matrix" }, make("table", {}, make("thead", {}, head), make("tbody", {}, body)));
}
