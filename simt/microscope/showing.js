// What is shown of the instruction at which the microscope stands.

Object.assign(Microscope.prototype, {
  // Whose local arrays are shown: the lane that is followed, or the first at work.
  localOwner() {
    const { step, lane } = this.state;
    return { warp: this.recording.warp[step], lane: lane ?? this.recording.lanesOf(step)[0] };
  },

  // The lanes of an instruction that are shown.
  lanesShown(i) {
    const { lane, warp } = this.state;
    const lanes = this.recording.lanesOf(i);
    return lane === null || (warp ?? this.recording.warp[i]) !== this.recording.warp[i]
      ? lanes
      : lanes.filter((one) => one === lane);
  },

  // What has been touched before: of the warp and lane that are followed.
  remember() {
    const { lane, warp } = this.state;
    const follows = (i) =>
      (warp === null || this.recording.warp[i] === warp) &&
      (lane === null || this.recording.works(i, lane));
    for (const grid of this.grids) grid.remember(follows, (i) => this.lanesShown(i));
    this.localsOf = null;
  },

  // Accesses to local arrays belong to the step before them: what is read goes to registers.
  localsNow() {
    const { step, registers } = this.state;
    const { recording } = this;
    if (registers) return [step];
    const now = [];
    for (let i = step; i < recording.length; i++) {
      if (recording.warp[i] !== recording.warp[step]) continue;
      if (i > step && recording.spaceOf(i) !== "local") break;
      now.push(i);
    }
    return now;
  },

  show() {
    const { step, lane, warp, picked, marked, unrecorded } = this.state;
    const r = this.recording;
    if (!this.root.clientWidth) return; // not on the page, or hidden
    const lanesOf = (i) => this.lanesShown(i);
    this.timeline.show(step);
    for (const listing of this.listings) listing.show(step, unrecorded);
    const { source, line } = r.placeOf(step);
    this.showPtx(source, line);
    const inSpace = (space) => (picked?.space === space ? picked : null);
    for (const grid of this.grids) {
      grid.show({
        now: [step],
        lanesOf,
        step,
        picked: inSpace(grid.space),
        chosen: lane ?? marked,
      });
      grid.caption.classList.toggle("active", grid.now.size > 0);
      this.showCaption(grid);
    }
    this.showLocals();
    this.warps.value = warp === null ? "" : `${warp}`;
    this.registers.checked = this.state.registers;
    this.sentence.replaceChildren(...this.inWords(step));
    this.showLoops();
    this.showChips();
    this.showCounts();
    this.showDetails();
    this.root.dataset.step = r.number[step];
  },

  // What the compiler made of a line; coloured is the instruction where we are.
  showPtx(source, line) {
    const lines = this.data.sources[source]?.ptx?.[line];
    this.ptx.hidden = !lines && !this.data.sources.some(({ ptx }) => ptx);
    const [summary, text] = this.ptx.children;
    const of = `PTX of line ${line} of ${this.data.sources[source]?.name}`;
    summary.textContent = `${of}: ${lines ? plural(lines.length, "instruction") : "none"}`;
    const now = this.recording.placeOf(this.state.step).text;
    text.replaceChildren(
      ...(lines ?? []).map((textContent) =>
        element("div", { className: textContent === now ? "now" : "", textContent }),
      ),
    );
    const here = text.querySelector(".now");
    text.scrollTop = here ? here.offsetTop - text.offsetTop - 45 : 0;
  },

  showCaption(grid) {
    const { title } = grid.shape.tiles[grid.tile];
    grid.caption.textContent = grid.shape.title + (title ? `: ${title}` : "");
  },

  showLocals() {
    const owner = this.localOwner();
    const key = `${owner.warp} ${owner.lane}`;
    const lanesOf = () => [owner.lane];
    this.localTitle.textContent = `local arrays of lane ${owner.lane} of warp ${owner.warp}, from here to the next step`;
    for (const grid of this.localGrids) {
      const mine = (i) => this.recording.works(i, owner.lane);
      if (this.localsOf !== key) grid.remember(mine, lanesOf);
      const now = this.localsNow().filter(mine);
      grid.show({
        now,
        lanesOf,
        step: now.at(-1) ?? this.state.step,
        picked: null,
        chosen: owner.lane,
      });
    }
    this.localsOf = key;
  },

  showLoops() {
    const lines = this.recording.linesOf(this.state.step);
    this.loops.replaceChildren();
    lines.forEach(({ loop, turn }, depth) => {
      if (loop === null) return;
      const button = (text, by, title) =>
        element("button", {
          textContent: text,
          title,
          ariaLabel: title,
          onclick: () => this.turn(depth, by),
        });
      this.loops.append(
        element(
          "span",
          { className: "loop" },
          `${loop}: turn ${turn} `,
          button("◀", -1, `${loop}: previous iteration`),
          button("▶", 1, `${loop}: next iteration`),
        ),
      );
    });
    const none = this.data.compiled ? "as compiled: loops aren't known" : "outside any loop";
    if (!this.loops.children.length)
      this.loops.append(element("span", { className: "loop", textContent: none }));
  },

  showChips() {
    const r = this.recording;
    const { step, lane } = this.state;
    [...this.chips.children].forEach((chip, one) => {
      const works = r.works(step, one);
      const shuffle = works && r.kindOf(step) === "shuffle";
      const color = this.data.lane_colors[one];
      chip.textContent = shuffle ? `${one}←${r.value(step, one)}` : `${one}`;
      chip.style.background = works ? color : "#FFFFFF";
      chip.style.color = works ? inkOn(color) : QUIET;
      chip.tabIndex = one === (lane ?? 0) ? 0 : -1;
      chip.classList.toggle("chosen", lane === one);
      chip.classList.toggle("marked", this.state.marked === one);
      chip.ariaPressed = `${lane === one}`;
    });
  },

  showCounts() {
    const { step } = this.state;
    const { sectors, ideal_sectors, wavefronts, ideal } = this.recording.soFar(step);
    const n = (x) => x.toLocaleString("en");
    this.counts.replaceChildren(
      element("div", {
        textContent: `So far, all warps: ${plural(sectors, "sector")} of global memory (${n(ideal_sectors)} at best), ${plural(wavefronts, "wavefront")} of shared memory (${n(ideal)} at best)`,
      }),
      ...this.aboutLanes(step).map((words) => element("div", { className: "about" }, words)),
    );
  },
});
