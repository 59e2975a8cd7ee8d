// The time line, and the kernel's source beside it.

const WARP_HEIGHT = 13;
const COLORS = { global: "#E69F00", shared: "#CC79A7", local: "#D9D9D9", none: "#0072B2" };
const LEGEND = {
  global: "global memory",
  shared: "shared memory",
  local: "local arrays",
  none: "shuffle, vote, barrier",
};

class Timeline {
  // go(i): called when the reader picks an instruction
  constructor(recording, go) {
    Object.assign(this, { recording, go });
    this.canvas = document.createElement("canvas");
    this.canvas.className = "timeline";
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "time line: a row for each warp, click to jump");
    this.legend = document.createElement("div");
    this.legend.className = "legend";
    for (const [space, words] of Object.entries(LEGEND)) {
      const mark = document.createElement("span");
      mark.style.borderColor = COLORS[space];
      mark.textContent = words;
      this.legend.append(mark);
    }
    const pick = (event) => {
      this.canvas.title = this.inWords(event);
      if (event.type === "pointermove" && !event.buttons) return;
      const { last, next } = this.under(event);
      if (last >= 0 || next >= 0) go(last >= 0 ? last : next);
    };
    this.canvas.addEventListener("pointerdown", pick);
    this.canvas.addEventListener("pointermove", pick);
  }

  // The middle of an instruction.
  x(i) {
    return this.left + ((i + 0.5) / this.recording.length) * this.room;
  }

  // What is under the pointer: a warp, its last instruction until then and its next one.
  under(event) {
    const { recording } = this;
    const box = this.canvas.getBoundingClientRect();
    const part = (event.clientX - box.left - this.left) / this.room;
    const at = Math.floor(Math.max(0, Math.min(1, part)) * recording.length);
    const row = Math.floor((event.clientY - box.top) / WARP_HEIGHT);
    const warp = Math.max(0, Math.min(recording.data.num_warps - 1, row));
    let [last, next] = [Math.min(at, recording.length - 1), at + 1];
    while (last >= 0 && recording.warp[last] !== warp) last--;
    while (next < recording.length && recording.warp[next] !== warp) next++;
    return { warp, last, next: next < recording.length ? next : -1 };
  }

  inWords(event) {
    const { warp, last, next } = this.under(event);
    const text = (i) => {
      const kind = this.recording.kindOf(i);
      return `instruction ${(i + 1).toLocaleString("en")}, ${kind}, line ${this.recording.placeOf(i).line}`;
    };
    const parts = [last >= 0 ? text(last) : "nothing yet", next >= 0 ? text(next) : "its end"];
    return `warp ${warp}: ${parts.join("; then ")}`;
  }

  // The picture without the cursor is drawn once for each width.
  paint(w, h) {
    const { recording } = this;
    this.base = document.createElement("canvas");
    const context = sized(this.base, w, h);
    context.font = "10px sans-serif";
    context.textBaseline = "middle";
    for (let warp = 0; warp < recording.data.num_warps; warp++) {
      context.fillStyle = INK;
      context.fillText(`warp ${warp}`, 0, (warp + 0.5) * WARP_HEIGHT);
    }
    const wide = Math.max(0.8, this.room / recording.length);
    // what lies in memory last, so that it is not covered by the many accesses to registers
    for (const space of ["local", "shared", "global", "none"]) {
      const number = recording.data.spaces.indexOf(space);
      context.fillStyle = COLORS[space];
      for (let i = 0; i < recording.length; i++)
        if (recording.space[i] === number)
          context.fillRect(
            this.left + (i / recording.length) * this.room,
            recording.warp[i] * WARP_HEIGHT + 1,
            wide,
            WARP_HEIGHT - 2,
          );
    }
    context.fillStyle = ALARM;
    for (const { first, second } of recording.data.findings)
      for (const i of [first, second])
        if (i !== null) context.fillRect(this.x(i) - 2, h - 8, 5, 8);
  }

  show(i) {
    const w = this.canvas.parentElement.clientWidth;
    if (w <= 52) return; // a page that is hidden
    const h =
      this.recording.data.num_warps * WARP_HEIGHT + (this.recording.data.findings.length ? 10 : 2);
    [this.left, this.room] = [48, w - 52];
    const ratio = globalThis.devicePixelRatio || 1;
    if (!this.base || this.base.width !== Math.round(w * ratio)) this.paint(w, h);
    const context = sized(this.canvas, w, h);
    context.drawImage(this.base, 0, 0, w, h);
    context.fillStyle = INK;
    context.fillRect(Math.round(this.x(i)) - 1, 0, 2, h);
    context.strokeStyle = INK;
    context.lineWidth = 1.5;
    context.strokeRect(this.x(i) - 4, this.recording.warp[i] * WARP_HEIGHT, 8, WARP_HEIGHT);
  }
}

// The lines that a reader can pick: those with something to jump to, and those with PTX.
const PICKED = ".line.reached, .line.compiled";

// The text of some functions: the kernel, or the device functions that it calls.
class Listing {
  // first, end: which sources; jump(source, line, back, reached): called when the reader picks a
  // line; reached: there is something to jump to
  constructor(recording, first, end, jump) {
    Object.assign(this, { recording, jump });
    this.element = document.createElement("div");
    this.element.className = "listing";
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "listbox");
    this.element.setAttribute("aria-label", "source; Enter jumps to the next visit of a line");
    this.rows = new Map(); // "source:line" -> its element
    recording.data.sources.forEach((source, number) => {
      if (number >= first && number < end) this.add(source, number);
    });
    this.element.addEventListener("click", ({ target, shiftKey }) => {
      const row = target.closest(PICKED);
      if (row) this.pick(row, shiftKey);
    });
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  add(source, number) {
    const lines = source.lines.map((text) => text.replace(/^\s*$/, ""));
    const indents = lines.filter(Boolean).map((text) => /^ */.exec(text)[0].length);
    const indent = Math.min(...indents);
    const head = document.createElement("div");
    head.className = "head";
    head.textContent = source.name;
    this.element.append(head);
    const reached = this.reached(number);
    const { findings } = this.recording.data;
    const wrong = new Set(findings.filter((f) => f.source === number).map(({ line }) => line));
    lines.forEach((text, k) => {
      const line = source.first + k;
      const row = document.createElement("div");
      row.className = reached.has(line) ? "line reached" : "line";
      row.classList.toggle("compiled", line in (source.ptx ?? {}));
      row.classList.toggle("wrong", wrong.has(line));
      Object.assign(row.dataset, { source: number, line });
      row.setAttribute("role", "option");
      row.title = text.trim();
      for (const [name, words] of [
        ["number", line],
        ["turn", ""],
        ["code", text.trim()],
      ]) {
        const part = document.createElement("span");
        part.className = name;
        part.textContent = words;
        row.append(part);
        // Half of the indentation; a long line goes on two places further in.
        const spaces = Math.max(0, /^ */.exec(text)[0].length - indent);
        if (name === "code") part.style.padding = `0 4px 0 ${spaces / 2 + 2}ch`;
      }
      this.element.append(row);
      this.rows.set(`${number}:${line}`, row);
    });
  }

  // The lines of a source at which there is something to jump to.
  reached(number) {
    const { data, place, way } = this.recording;
    const ways = new Set(way);
    const inWays = [...ways].flatMap((w) => data.ways[w].map(([p]) => p));
    const places = [...new Set([...place, ...inWays])].map((p) => data.places[p]);
    return new Set(places.filter(({ source }) => source === number).map(({ line }) => line));
  }

  // unrecorded: a finding whose line is shown instead, since it has no instruction
  show(i, unrecorded) {
    for (const row of this.element.querySelectorAll(".now, .around")) {
      row.classList.remove("now", "around");
      row.querySelector(".turn").textContent = "";
    }
    const lines = this.recording.linesOf(i);
    for (const { source, line, turn } of lines) {
      const row = this.rows.get(`${source}:${line}`);
      row?.classList.add("around");
      if (row && turn !== NO_TURN) row.querySelector(".turn").textContent = `turn ${turn}`;
    }
    // The innermost line that stands here: of the kernel, the call of a device function.
    const here = lines
      .map(({ source, line }) => this.rows.get(`${source}:${line}`))
      .filter(Boolean);
    for (const row of this.element.querySelectorAll("[aria-selected]"))
      row.removeAttribute("aria-selected");
    const now = unrecorded
      ? this.rows.get(`${unrecorded.source}:${unrecorded.line}`)
      : here.at(-1);
    if (!now) return;
    now.classList.add("now");
    now.ariaSelected = "true";
    this.bringIntoView((unrecorded ? now : here[0]).offsetTop, now.offsetTop);
  }

  // The line where we are; with those around it, if there is room for both.
  bringIntoView(first, now) {
    const { scrollTop, clientHeight } = this.element;
    const inView = (top) => top >= scrollTop + 20 && top <= scrollTop + clientHeight - 40;
    const fits = now - first < clientHeight - 45;
    if (inView(now) && (inView(first) || !fits)) return;
    this.element.scrollTop = fits ? first - 20 : now - clientHeight / 2;
  }

  pick(row, back) {
    const { source, line } = row.dataset;
    this.jump(Number(source), Number(line), back, row.classList.contains("reached"));
  }

  key(event) {
    const reached = [...this.element.querySelectorAll(PICKED)];
    const at = reached.findIndex((row) => row.classList.contains("cursor"));
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) {
      const from = at < 0 ? reached.findIndex((row) => row.classList.contains("now")) : at;
      const to = Math.max(0, Math.min(reached.length - 1, from + moves[event.key]));
      reached[at]?.classList.remove("cursor");
      reached[to].classList.add("cursor");
      reached[to].scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && at >= 0) {
      this.pick(reached[at], event.shiftKey);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
