// An element that is pointed at or picked: what it is, who touched it and when.

Object.assign(Microscope.prototype, {
  showDetails() {
    const { picked } = this.state;
    const key =
      picked &&
      `${picked.space} ${picked.address} ${picked.bytes} ${picked.owner?.warp} ${picked.owner?.lane} ${picked.owner?.array}`;
    if (key !== this.detailsOf) {
      this.detailsOf = key;
      this.details.replaceChildren(
        ...(picked
          ? this.history(picked)
          : [
              element("div", {
                className: "hint",
                textContent:
                  "Pick an element of a pane, or find one by its name, to see which threads touched it and when.",
              }),
            ]),
      );
    }
    for (const row of this.details.querySelectorAll("tr[data-i]"))
      row.classList.toggle("now", Number(row.dataset.i) === this.state.step);
  },

  // Who touched an element, and when; for each name that it has in the kernel, the last write.
  history({ space, address, bytes, text, owner = null }) {
    const r = this.recording;
    const all = r.accesses(space, address, address + bytes, owner);
    const name = text ?? r.namesOf(space, address, owner?.array)[0] ?? `address ${address}`;
    const parts = [
      element("div", {
        className: "caption",
        textContent: all.length
          ? `${name}: touched ${plural(all.length, "time")}, every lane counted`
          : `${name}: not touched by this thread block`,
      }),
    ];
    if (!all.length) return parts;
    const last = new Map(); // a name that the element has in the kernel, or "" -> its last write
    const known = r.data.arrays.flatMap(({ name, aliases }) => [name, ...aliases]);
    for (const { i, lane } of all) {
      const by = baseName(r.placeOf(i).text);
      if (r.kindOf(i) !== "read") last.set(known.includes(by) ? by : "", { i, lane });
    }
    for (const [by, { i, lane }] of last) {
      const words = `last written${by && ` as ${by}`}: instruction ${(i + 1).toLocaleString("en")}, warp ${r.warp[i]} lane ${lane} (thread ${r.warp[i] * 32 + lane}), line ${r.placeOf(i).line}`;
      parts.push(
        element(
          "div",
          { className: "last" },
          element("button", { textContent: words, onclick: () => this.visit(i) }),
        ),
      );
    }
    const table = element("table");
    table.append(
      element(
        "tr",
        {},
        ...["instruction", "warp", "lane", "does", "line", "expression"].map((textContent) =>
          element("th", { textContent }),
        ),
      ),
    );
    for (const { i, lane } of all.slice(0, MAX_ROWS)) {
      const { line, text: expression } = r.placeOf(i);
      const cells = [
        (i + 1).toLocaleString("en"),
        r.warp[i],
        lane,
        DOES[r.kindOf(i)],
        line,
        expression,
      ];
      const row = element(
        "tr",
        { onclick: () => this.visit(i) },
        ...cells.map((textContent) => element("td", { textContent })),
      );
      row.dataset.i = i;
      table.append(row);
    }
    parts.push(table);
    if (all.length > MAX_ROWS)
      parts.push(element("div", { textContent: `and ${all.length - MAX_ROWS} more` }));
    return parts;
  },

  // To an instruction, whoever is followed.
  visit(i) {
    const { warp, lane } = this.state;
    if (
      (warp !== null && this.recording.warp[i] !== warp) ||
      (lane !== null && !this.recording.works(i, lane))
    ) {
      Object.assign(this.state, { warp: null, lane: null });
      this.remember();
    }
    this.go(i);
  },

  // The pointer and the keys in a pane.
  watch(grid) {
    const under = ({ offsetX, offsetY }) => grid.under(offsetX, offsetY);
    const pick = (cell) => {
      const address = grid.address(cell);
      const owner =
        grid.space === "local" ? { ...this.localOwner(), array: grid.shape.array } : null;
      this.pick({ space: grid.space, address, bytes: grid.shape.unit, owner });
    };
    grid.canvas.addEventListener("pointermove", (event) => this.hover(grid, under(event), event));
    grid.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    grid.canvas.addEventListener("click", (event) => {
      const found = under(event);
      if (found?.cell !== undefined) pick(found.cell);
      if (found?.tile !== undefined) {
        grid.tile = found.tile;
        grid.draw();
        this.showCaption(grid);
      }
    });
    grid.canvas.addEventListener("blur", () => {
      grid.cursor = null;
      grid.draw();
      this.tip.hidden = true;
    });
    grid.canvas.addEventListener("keydown", (event) => {
      const moves = {
        ArrowRight: 1,
        ArrowLeft: -1,
        ArrowDown: grid.columns.length,
        ArrowUp: -grid.columns.length,
      };
      if (event.key in moves) {
        const count = grid.shape.tiles.length * grid.perTile;
        const from = grid.cursor ?? grid.tile * grid.perTile - moves[event.key];
        grid.cursor = Math.max(0, Math.min(count - 1, from + moves[event.key]));
        grid.tile = grid.tileOf(grid.cursor);
        grid.draw();
        this.showCaption(grid);
        this.hover(grid, { cell: grid.cursor }, null);
      } else if (event.key === "Enter" && grid.cursor !== null) pick(grid.cursor);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  },

  hover(grid, found, event) {
    this.tip.hidden = found?.cell === undefined;
    if (this.tip.hidden) return;
    this.tip.replaceChildren(
      ...this.meaning(grid, found.cell).map((textContent) => element("div", { textContent })),
    );
    const frame = this.root.getBoundingClientRect();
    const canvas = grid.canvas.getBoundingClientRect();
    const box = grid.box(found.cell);
    const x = (event ? event.clientX : canvas.left + box.x) - frame.left + 14;
    const y = (event ? event.clientY : canvas.top + box.y) - frame.top + 16;
    this.tip.style.left = `${Math.max(0, Math.min(x, frame.width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${y}px`;
  },
});

// logits[i] -> logits
const baseName = (text) => /^\w+/.exec(text)?.[0] ?? text;
