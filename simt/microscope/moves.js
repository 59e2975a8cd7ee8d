// How the microscope moves: steps, jumps, keys.

Object.assign(Microscope.prototype, {
  // Does the reader want to stop at an instruction?
  stops(i) {
    const { warp, lane, registers } = this.state;
    return (
      (warp === null || this.recording.warp[i] === warp) &&
      (lane === null || this.recording.works(i, lane)) &&
      (registers || this.recording.spaceOf(i) !== "local")
    );
  },

  // The nearest instruction after (direction 1) or before (-1) at which to stop; `from` if none.
  next(from, direction, wanted = () => true) {
    for (let i = from + direction; i >= 0 && i < this.recording.length; i += direction)
      if (this.stops(i) && wanted(i)) return i;
    return from;
  },

  // marked: a lane to point out there. Whoever goes somewhere has stopped playing.
  go(i, { marked = null, unrecorded = null, playing = false } = {}) {
    if (this.timer && !playing) this.play();
    this.state.step = Math.max(0, Math.min(this.recording.length - 1, i));
    Object.assign(this.state, { marked, unrecorded });
    this.notice.textContent = unrecorded
      ? `Nothing is recorded of the mistake in line ${unrecorded.line}, so the panes show an instruction before it.`
      : "";
    this.show();
  },

  // To an access of a finding; the pane of its array comes before the others.
  goToFinding(finding, i, lane) {
    const grid = [...this.grids, ...this.localGrids].find(({ shape, space }) =>
      space === "shared"
        ? this.data.arrays[finding.array]?.space === space
        : shape.array === finding.array,
    );
    if (grid) this.panesElement.prepend(grid.canvas.closest(".locals, .pane"));
    const recorded = finding.recorded || i !== finding.second;
    this.go(i, recorded ? { marked: lane } : { unrecorded: finding });
  },

  move(direction, times = 1, options = {}) {
    let i = this.state.step;
    for (let n = 0; n < times; n++) i = this.next(i, direction);
    this.go(i, options);
  },

  // To the next visit of a line, or (back) the one before; round the end, if there is none.
  jump(source, line, back = false) {
    const keyOf = (i) =>
      this.recording.linesOf(i).find((l) => l.source === source && l.line === line)?.key;
    const here = keyOf(this.state.step);
    const direction = back ? -1 : 1;
    const wanted = (n) => ![undefined, here].includes(keyOf(n));
    let i = this.next(this.state.step, direction, wanted);
    if (i === this.state.step) {
      const end = back ? this.recording.length : -1;
      i = this.next(end, direction, wanted);
      if (i === end) return this.sayWhyNot(line, keyOf, here);
    }
    if (back) {
      const key = keyOf(i); // to the beginning of that visit
      for (let n = i; keyOf(n) === key; n = this.next(n, -1)) {
        i = n;
        if (this.next(n, -1) === n) break;
      }
    }
    this.go(i);
  },

  // Why there is no other visit of a line.
  sayWhyNot(line, keyOf, here) {
    const all = [...Array(this.recording.length).keys()].filter((i) => keyOf(i) !== undefined);
    const { warp, lane } = this.state;
    const who = lane !== null ? `lane ${lane} of warp ${warp}` : `warp ${warp}`;
    const follows = (i) =>
      (warp === null || this.recording.warp[i] === warp) &&
      (lane === null || this.recording.works(i, lane));
    if (here !== undefined) this.notice.textContent = `line ${line} has no other visit`;
    else if (all.some(follows))
      this.notice.textContent = `line ${line} touches local arrays only: tick "local arrays too"`;
    else this.notice.textContent = `${who} never reaches line ${line}`;
  },

  // To the same place, another turn of the loop at this depth of the way.
  turn(depth, direction) {
    const lines = this.recording.linesOf(this.state.step);
    const [{ source, line, turn }, place] = [lines[depth], this.recording.place[this.state.step]];
    const outer = depth ? lines[depth - 1].key : "";
    this.go(
      this.next(this.state.step, direction, (i) => {
        if (
          this.recording.place[i] !== place ||
          this.recording.warp[i] !== this.recording.warp[this.state.step]
        )
          return false;
        const other = this.recording.linesOf(i)[depth];
        return (
          other &&
          other.source === source &&
          other.line === line &&
          other.key.startsWith(outer) &&
          other.turn === turn + direction
        );
      }),
    );
  },

  follow(change) {
    Object.assign(this.state, change);
    this.remember();
    if (!this.stops(this.state.step)) this.state.step = this.next(this.state.step, 1);
    if (!this.stops(this.state.step)) this.state.step = this.next(this.state.step, -1);
    this.show();
  },

  // What was chosen by a click; the keys work again at once.
  chosen(change) {
    this.follow(change);
    this.root.focus({ preventScroll: true });
  },

  // A lane is one of a warp: of the one that is followed, or else of the one we are at.
  // When the lane is let go, the warps that were followed before are followed again.
  followLane(lane) {
    if (this.state.lane === null) this.warpBefore = this.state.warp;
    const warp = lane === null ? this.warpBefore : this.recording.warp[this.state.step];
    this.chosen({ lane, warp });
  },

  pick(picked) {
    this.state.picked = picked;
    this.show();
  },

  find(text) {
    try {
      this.search.setCustomValidity("");
      const { space, address, bytes } = this.recording.find(text);
      const grid = this.grids.find((g) => g.space === space && g.cellAt(address) >= 0);
      if (grid) grid.tile = grid.tileOf(grid.cellAt(address));
      this.pick({ space, address, bytes, text });
    } catch (error) {
      this.search.setCustomValidity(error.message);
      this.search.reportValidity();
      this.details.textContent = error.message;
    }
  },

  play() {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
    } else {
      const each = Math.max(1, Number(this.speed.value) / 50);
      this.timer = setInterval(
        () => {
          const before = this.state.step;
          this.move(1, each, { playing: true });
          if (this.state.step === before || !this.root.isConnected) this.play();
        },
        (1000 * each) / Number(this.speed.value),
      );
    }
    this.playButton.textContent = this.timer ? "■ stop" : "▶ play";
  },

  key(event) {
    const { step, lane, warp } = this.state;
    const cycle = (value, count, by) =>
      value === null
        ? by > 0
          ? 0
          : count - 1
        : value + by < 0 || value + by >= count
          ? null
          : value + by;
    const around = this.recording.linesOf(step).at(-1);
    const actions = {
      ArrowRight: () => this.move(1, event.shiftKey ? 10 : 1),
      ArrowLeft: () => this.move(-1, event.shiftKey ? 10 : 1),
      Home: () => this.go(this.next(-1, 1)),
      End: () => this.go(this.next(this.recording.length, -1)),
      " ": () => this.play(),
      n: () => this.jump(around.source, around.line),
      N: () => this.jump(around.source, around.line, true),
      w: () => this.follow({ warp: cycle(warp, this.data.num_warps, 1) }),
      l: () => this.followLane(cycle(lane, 32, 1)),
      L: () => this.followLane(cycle(lane, 32, -1)),
      f: () => this.search.focus(),
      Escape: () => {
        this.state.picked = null;
        this.follow({ lane: null, warp: null });
      },
    };
    const typing = ["INPUT", "SELECT"].includes(event.target.tagName);
    const pressing = ["BUTTON", "SUMMARY"].includes(event.target.tagName) && event.key === " ";
    event.stopPropagation();
    if (typing || pressing || !(event.key in actions) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  },
});
