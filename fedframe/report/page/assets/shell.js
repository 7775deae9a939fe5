// A section around its figure: title, how to read it, controls, the drawing, and its numbers as a table.

class Shell {
  constructor(section) {
    this.id = section.id;
    this.controlsSeen = "";
    this.stale = true; // to be drawn
    const ids = { title: `${this.id}-title`, read: `${this.id}-read`, alt: `${this.id}-alt` };
    this.title = make("h2", { id: ids.title });
    this.read = make("p", { class: "read", id: ids.read });
    this.controls = make("div", { class: "controls" });
    this.body = make("div", { class: "body" });
    this.alt = make("p", { class: "hidden", id: ids.alt });
    this.figure = make("figure", { role: "group", "aria-labelledby": ids.title, "aria-describedby": `${ids.read} ${ids.alt}` }, this.body, this.alt);
    const { fold, fill } = tableFold(`fedframe-${this.id}`, () => this.drawer.table(this.data, this.tools()));
    [this.fold, this.fill] = [fold, fill];
    this.node = make("section", { id: this.id, class: "card" }, this.title, this.read, this.controls, this.figure, this.fold);
    this.update(section);
  }

  get drawer() {
    return figures[this.id];
  }

  // Take in new data; true if anything has changed.
  update(section) {
    if (this.section && JSON.stringify(section) === JSON.stringify(this.section)) return false;
    this.section = section;
    this.title.textContent = section.title;
    this.read.textContent = section.read;
    this.alt.textContent = section.alt || "";
    this.node.classList.toggle("wide", section.wide);
    this.node.classList.toggle("empty", Boolean(section.missing));
    return true;
  }

  // The data of the run that is shown, where a section has several.
  get data() {
    const { variants } = this.section.data;
    if (!variants) return this.section.data;
    const name = chosen(this.id, this.runControl());
    return variants.find((variant) => variant.name === name).data;
  }

  runControl() {
    return { key: "run", label: "Run", shared: "run", options: this.section.data.variants.map(({ name }) => [name, name]) };
  }

  tools() {
    const declared = this.drawer.controls ? this.drawer.controls(this.data) : [];
    return {
      width: this.body.clientWidth,
      get: (key) => chosen(this.id, declared.find((control) => control.key === key)),
      hidden: choices.get(`${this.id}.hidden`) || new Set(),
      toggle: (label) => {
        const hidden = new Set(choices.get(`${this.id}.hidden`));
        if (!hidden.delete(label)) hidden.add(label);
        choices.set(`${this.id}.hidden`, hidden);
        this.draw();
        [...this.body.querySelectorAll("[aria-pressed]")].find((button) => button.textContent.includes(label))?.focus();
      },
      redraw: () => this.draw(),
    };
  }

  drawControls() {
    const declared = this.drawer.controls ? this.drawer.controls(this.data) : [];
    const several = (this.section.data.variants || []).length > 1 ? [this.runControl()] : [];
    const all = [...several, ...declared].filter((control) => control.options.length > 1);
    const now = JSON.stringify(all.map((control) => [control, control.shared ? chosen(this.id, control) : null]));
    if (now === this.controlsSeen) return; // an unchanged control keeps the focus that it may have
    this.controlsSeen = now;
    const changed = (control) => (control.shared ? page.draw() : this.draw());
    this.controls.replaceChildren(...all.map((control) => drawControl(this.id, control, changed)));
  }

  // Whether it is on the screen, or will be after a short scroll.
  near() {
    const box = this.node.getBoundingClientRect();
    return box.top < 1.4 * innerHeight && box.bottom > -0.4 * innerHeight;
  }

  draw() {
    tooltip.hide();
    this.stale = false;
    this.fold.hidden = Boolean(this.section.missing) || !this.drawer.table;
    if (this.section.missing) {
      this.controls.replaceChildren();
      this.controlsSeen = "";
      this.body.replaceChildren(make("p", { class: "missing" }, this.section.missing));
      return;
    }
    this.drawControls();
    this.body.style.minHeight = `${this.body.offsetHeight}px`; // the page must not jump while it is redrawn
    try {
      this.body.replaceChildren(...[this.drawer.draw(this.data, this.tools())].flat().filter(Boolean));
    } catch (error) {
      console.error(error);
      this.body.replaceChildren(make("p", { class: "missing" }, "This figure could not be drawn; its numbers are in the table."));
    }
    this.body.style.minHeight = "";
    this.fill();
  }
}
