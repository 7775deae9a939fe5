// What was run, and the command that runs it again.

figures.about = {
  draw(data) {
    const several = data.groups.length > 1;
    const top = data.command ? [make("h3", {}, "The whole comparison"), commandLine(data.command)] : [];
    const groups = data.groups.map((group) => {
      const facts = group.facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]);
      const rows = Object.entries(group.settings);
      const settings = make("details", {}, make("summary", {}, `All ${rows.length} settings`), drawTable({ columns: ["setting", "value"], rows }, () => "wrapped"));
      const more = group.commands.slice(1).map(commandLine);
      const rest = more.length ? make("details", {}, make("summary", {}, `The other ${more.length} seeds`), more) : null;
      const content = [make("dl", { class: "facts" }, facts), commandLine(group.commands[0]), rest, settings];
      if (!several) return make("div", {}, content);
      return make("details", {}, make("summary", {}, `${group.label} (seeds ${group.seeds.join(", ")}; ${group.state})`), content);
    });
    return [...top, ...groups];
  },
};

function commandLine(text) {
  const button = make("button", { type: "button", class: "quiet" }, "Copy");
  // A line ends between words only: half an option is easily mistyped.
  const words = text.split(" ").flatMap((word, i) => [i ? " " : "", make("span", {}, word)]);
  const code = make("pre", { tabindex: "0", "aria-label": "Command" }, words);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // no clipboard on this page: then it is selected, ready for Ctrl-C
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return make("div", { class: "command" }, code, button);
}
