// The one tooltip of figures that are drawn on a canvas.

const tooltip = {
  show(lines, x, y) {
    const node = document.getElementById("tip");
    const [first, ...rest] = lines;
    node.replaceChildren(make("b", {}, first), rest.join("\n"));
    node.hidden = false;
    const box = node.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth - 8 ? x - box.width - 14 : x + 14;
    const top = y + 14 + box.height > innerHeight - 8 ? y - box.height - 14 : y + 14;
    node.style.left = `${Math.max(8, left)}px`;
    node.style.top = `${Math.max(8, top)}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};
addEventListener("scroll", () => tooltip.hide(), { passive: true });
