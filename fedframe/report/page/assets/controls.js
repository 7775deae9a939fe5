// What a reader can choose: a row of options, a list where there are many, and lines that can be put away.

const FEW = 5; // options that fit side by side

// A control is {key, label, options: [[value, text], ...]}; its first option is the default.
function chosen(section, control) {
  const value = choices.get(control.shared || `${section}.${control.key}`);
  return control.options.some(([option]) => option === value) ? value : control.options[0][0];
}

function drawControl(section, control, changed) {
  const now = chosen(section, control);
  const choose = (value) => {
    choices.set(control.shared || `${section}.${control.key}`, value);
    changed(control);
  };
  const long = control.options.some(([, text]) => text.length > 24);
  if (control.options.length > FEW || (long && control.options.length > 3)) {
    const options = control.options.map(([value, text]) => make("option", { value, selected: value === now }, text));
    const list = make("select", { onchange: (event) => choose(event.target.value) }, options);
    return make("label", { class: "choice" }, make("span", {}, control.label), list);
  }
  const labels = control.options.map(([value, text]) => {
    const input = make("input", { type: "radio", name: `${section}-${control.key}`, value, checked: value === now, onchange: () => choose(value) });
    return make("label", {}, input, make("span", {}, text));
  });
  return make("fieldset", { class: "choice" }, make("legend", {}, control.label), make("div", { class: "row" }, labels));
}

// Names of lines with their colours; a click puts a line away and brings it back.
function drawLegend(entries, hidden, toggle) {
  const rows = entries.map(({ label, value, index }) => {
    const dash = theme.dash(index);
    const svg = d3.create("svg").attr("width", 22).attr("height", 10).attr("aria-hidden", "true");
    svg.append("line").attr("x1", 1).attr("x2", 21).attr("y1", 5).attr("y2", 5).attr("stroke", theme.series(index))
      .attr("stroke-width", 2.5).attr("stroke-dasharray", dash);
    const content = [svg.node(), make("span", {}, label), value ? make("b", {}, value) : null];
    if (!toggle || entries.length < 2) return make("span", {}, content);
    return make("button", { type: "button", "aria-pressed": String(!hidden.has(label)), title: "Show or hide this line", onclick: () => toggle(label) }, content);
  });
  return make("div", { class: "legend" }, rows);
}
