// Figures are numbers too: every one can be shown as a table and saved as CSV.

const MOST_ROWS = 300; // on screen; the CSV has all

// `stack`: on a phone every row is a block of its own, its cells below each other with the names of their columns.
function drawTable({ columns, rows }, classes = () => "", stack = false) {
  const head = make("tr", {}, columns.map((name) => make("th", { scope: "col" }, String(name))));
  const body = rows.slice(0, MOST_ROWS).map((row) => make("tr", {}, row.map((cell, i) => make("td", { class: classes(row, i) || null, "data-column": stack && i ? String(columns[i]) : null }, cellText(cell)))));
  return make("div", { class: stack ? "table stack" : "table", tabindex: "0", role: "region", "aria-label": "Table of the figure's numbers" },
    make("table", {}, make("thead", {}, head), make("tbody", {}, body)));
}

const cellText = (cell) => (cell === null || cell === undefined ? DASH : typeof cell === "number" ? number(cell, 4) : String(cell));

function csv({ columns, rows }) {
  const quote = (cell) => {
    const text = cell === null || cell === undefined ? "" : String(cell);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows].map((row) => row.map(quote).join(",")).join("\n") + "\n";
}

function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// A fold-out that is filled when it is first opened: a table of 100,000 numbers costs nothing until then.
function tableFold(name, content) {
  const place = make("div");
  const fold = make("details", { class: "numbers" }, make("summary", {}, "Show as table"), place);
  const fill = () => {
    if (!fold.open) return place.replaceChildren();
    const table = content();
    const more = table.rows.length > MOST_ROWS ? `The first ${count(MOST_ROWS)} of ${count(table.rows.length)} rows; the file has all. ` : "";
    const button = make("button", { type: "button", class: "quiet", onclick: () => save(`${name}.csv`, csv(content())) }, "Save as CSV");
    return place.replaceChildren(drawTable(table), make("p", { class: "note" }, more, button));
  };
  fold.addEventListener("toggle", fill);
  return { fold, fill };
}
