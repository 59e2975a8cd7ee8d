// The microscope: one thread block, instruction by instruction.

const MAX_ROWS = 400; // accesses that a list shows; it says how many there are
const DOES = { read: "reads", write: "writes", atomic: "changes" };

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

class Microscope {
  constructor(root, data) {
    this.recording = new Recording(data);
    this.data = data;
    this.state = {
      step: 0,
      marked: null,
      warp: null,
      lane: null,
      picked: null,
      registers: false,
      unrecorded: null, // a finding without an instruction: we are at one before it
      ...data.open,
    };
    this.warpBefore = null; // followed again when a lane is let go
    this.root = element("div", { className: "microscope", tabIndex: 0 });
    this.root.dataset.lmSuppressShortcuts = "true"; // JupyterLab: its shortcuts stay out
    root.append(this.root);
    this.build();
    this.remember();
    const finding = data.findings.find(({ second }) => second === this.state.step);
    if (finding) this.goToFinding(finding, finding.second, finding.second_lane);
    else this.show();
    this.root.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.show()).observe(this.root);
  }

  build() {
    const button = (text, title, press) =>
      element("button", { textContent: text, title, ariaLabel: title, onclick: press });
    const r = this.recording;
    this.playButton = button("▶ play", "play and stop (space)", () => this.play());
    this.warps = element("select", {
      ariaLabel: "warp",
      onchange: () => this.chosen({ warp: number(this.warps) }),
    });
    this.warps.append(element("option", { value: "", textContent: "all warps" }));
    for (let w = 0; w < this.data.num_warps; w++)
      this.warps.append(element("option", { value: `${w}`, textContent: `warp ${w}` }));
    this.speed = element("select", {
      ariaLabel: "steps per second",
      onchange: () => this.root.focus({ preventScroll: true }),
    });
    for (const n of [2, 10, 50, 250])
      this.speed.append(element("option", { value: n, textContent: `${n}/s` }));
    this.registers = element("input", {
      type: "checkbox",
      onchange: () => this.chosen({ registers: this.registers.checked }),
    });
    this.search = element("input", {
      placeholder: "find, as in " + example(this.data),
      ariaLabel: "find an element",
      className: "search",
    });
    this.search.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") this.find(this.search.value);
      if (event.key === "Escape") this.root.focus();
    });
    const bar = element(
      "div",
      { className: "bar" },
      button("|◀", "to the first instruction (Home)", () => this.go(this.next(-1, 1))),
      button("◀", "one step back (←)", () => this.move(-1)),
      button("▶", "one step (→)", () => this.move(1)),
      this.playButton,
      this.speed,
      this.warps,
      element(
        "label",
        { title: "stop at accesses to local arrays too" },
        this.registers,
        " local arrays too",
      ),
      this.search,
      button("?", "keys", () => this.help.toggleAttribute("hidden")),
    );
    this.help = element("div", {
      className: "help",
      hidden: true,
      textContent:
        "→ ← step · Shift: ten steps · space play · n next visit of this line (N: the one before) · " +
        "w next warp, at its next instruction · l next lane (L: the one before) · f find · " +
        "Esc release · Home, End · loop iterations count from 0 · " +
        "in a pane: arrows move, Enter picks · in the source: ↑ ↓ and Enter jump; Shift goes back",
    });
    this.sentence = element("div", { className: "sentence", ariaLive: "polite" });
    this.notice = element("div", { className: "notice", ariaLive: "polite" });
    this.loops = element("div", { className: "loops" });
    this.chips = element("div", { className: "chips" });
    for (let lane = 0; lane < 32; lane++) {
      const chip = button("", `lane ${lane}`, () =>
        this.followLane(this.state.lane === lane ? null : lane),
      );
      this.chips.append(chip);
    }
    // One stop of the Tab key for all lanes; the arrows go from one to the next.
    this.chips.addEventListener("keydown", (event) => {
      const to = { ArrowRight: "nextSibling", ArrowLeft: "previousSibling" }[event.key];
      if (!to) return;
      event.target[to]?.focus();
      event.preventDefault();
      event.stopPropagation();
    });
    this.counts = element("div", { className: "counts" });
    this.timeline = new Timeline(r, (i) => this.go(i));
    const jump = (source, line, back, reached) => {
      if (reached) this.jump(source, line, back);
      this.showPtx(source, line);
    };
    const count = this.data.sources.length;
    this.listings = [new Listing(r, 0, 1, jump)];
    if (count > 1) this.listings.push(new Listing(r, 1, count, jump));
    this.ptx = element("details", { className: "ptx", open: true });
    this.ptx.append(element("summary"), element("pre", { tabIndex: 0 }));
    this.details = element("div", { className: "details", tabIndex: 0 });
    this.findings = element("div", { className: "findings" });
    this.tip = element("div", { className: "tip", hidden: true, role: "status" });
    this.buildPanes();
    const title = `${this.data.kernel}, thread block (${this.data.index.join(", ")}) of a grid of (${this.data.grid.join(", ")})`;
    this.root.append(
      element("div", { className: "title", textContent: title }),
      bar,
      this.help,
      element("div", { className: "time" }, this.timeline.canvas, this.timeline.legend),
      this.sentence,
      this.notice,
      this.loops,
      this.chips,
      element(
        "div",
        { className: "body" },
        element(
          "div",
          { className: "left" },
          ...this.listings.map((one) => one.element),
          this.ptx,
        ),
        element("div", { className: "said" }, this.findings, this.counts, this.details),
        this.panesElement,
      ),
      this.tip,
    );
    this.buildFindings();
  }

  buildPanes() {
    const r = this.recording;
    this.panesElement = element("div", { className: "panes room" });
    const others = element("div", { className: "small" });
    const locals = element("div", { className: "small" });
    this.localTitle = element("div", { className: "caption" });
    const add = (shape, space, matches, parent) => {
      const grid = new Grid(r, shape, space, matches);
      const caption = element("div", { className: "caption", textContent: shape.title });
      parent.append(element("div", { className: "pane" }, caption, grid.canvas));
      grid.caption = caption;
      this.watch(grid);
      return grid;
    };
    const ofArray =
      ({ array }) =>
      (i) =>
        r.array[i] - 1 === array;
    const isSmall = ({ tiles, rows, columns }) =>
      tiles.length === 1 &&
      rows.reduce((n, { size }) => n * size, 1) === 1 &&
      columns.at(-1).size <= 32 &&
      columns.length === 1;
    this.grids = this.data.panes.map((p) =>
      add(p, "global", ofArray(p), isSmall(p) ? others : this.panesElement),
    );
    const inShared = r.data.spaces.indexOf("shared");
    if (this.data.shared)
      this.grids.push(
        add(this.data.shared, "shared", (i) => r.space[i] === inShared, this.panesElement),
      );
    if (this.data.locals.length)
      this.panesElement.append(element("div", { className: "locals" }, this.localTitle, locals));
    this.panesElement.append(others);
    this.localGrids = this.data.locals.map((p) =>
      add(
        p,
        "local",
        (i) => r.array[i] - 1 === p.array && r.warp[i] === this.localOwner().warp,
        locals,
      ),
    );
  }

  buildFindings() {
    const { findings, clean } = this.data;
    if (!findings.length) this.findings.textContent = `Findings: none (${clean}).`;
    findings.forEach((finding) => {
      const { text, first, second, first_lane, second_lane } = finding;
      const to = (i, lane, words) =>
        element("button", {
          textContent: words,
          disabled: i === null,
          onclick: () => {
            Object.assign(this.state, { lane: null, warp: null });
            this.remember();
            this.goToFinding(finding, i, lane);
          },
        });
      const row = element("div", { className: "finding" }, element("pre", { textContent: text }));
      if (first !== null) row.append(to(first, first_lane, "to the first access"));
      row.append(
        to(
          second,
          second_lane,
          second === null
            ? "not in this thread block"
            : first === null
              ? "go there"
              : "to the second access",
        ),
      );
      this.findings.append(row);
    });
  }
}

const number = ({ value }) => (value === "" ? null : Number(value));

// An element that can be found, for the search field.
function example({ arrays }) {
  const known = arrays.filter(({ space }) => space !== "local");
  const array = known.find(({ aliases }) => aliases.length) ?? known.at(-1);
  return array
    ? `${array.aliases[0] ?? array.name}[${array.shape.map(() => 0).join(", ")}]`
    : "a[0]";
}
