// How a pane is drawn.

const INK = "#222222";
const QUIET = "#595959"; // 4.5 times as dark as what it stands on, the line where we are too
const EMPTY = "#F2F2F2";
const ALARM = "#D55E00";
const BANK_BYTES = 128; // of shared memory in a row: 32 banks of 4

Object.assign(Grid.prototype, {
  draw() {
    const { w, h } = this.layout();
    const context = sized(this.canvas, w, h);
    if (this.strip) this.drawStrip(context, w);
    if (this.banks) this.drawBanks(context);
    const start = this.tile * this.perTile;
    for (let cell = start; cell < start + this.perTile; cell++) {
      if (!this.exists(cell)) continue;
      const { x, y, w, h } = this.box(cell);
      const before = this.first[cell] && this.first[cell] - 1 <= this.step;
      context.fillStyle = before ? this.shape.color : EMPTY;
      context.fillRect(x, y, w + (this.run > 1 && w > 4 ? -0.5 : 0), h - 1);
    }
    for (const run of this.runs(start)) this.drawRun(context, run);
    if (this.banks) this.drawNames(context);
    if (this.picked) {
      const { address, bytes } = this.picked;
      this.frame(context, this.cellAt(address), this.cellAt(address + bytes - 1), ALARM);
    }
    if (this.cursor !== null) this.frame(context, this.cursor, this.cursor, INK);
  },

  frame(context, first, last, color) {
    if (first < 0 || last < 0 || this.tileOf(first) !== this.tile) return;
    const { x, y, h } = this.box(first);
    const end = this.box(last);
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.strokeRect(x - 1, y - 1, end.x + end.w - x + 2, h + 1);
  },

  // Neighbouring cells of one row and one gap-free run that the same lanes touch.
  runs(start) {
    const runs = [];
    const cells = [...this.now.keys()].filter((c) => this.tileOf(c) === this.tile);
    for (const cell of cells.sort((a, b) => a - b)) {
      const { lanes, write } = this.now.get(cell);
      const key = `${lanes} ${write}`;
      const last = runs.at(-1);
      const column = (cell - start) % this.columns.length;
      if (
        last &&
        last.cells.at(-1) === cell - 1 &&
        last.key === key &&
        column % this.run !== 0 &&
        column
      )
        last.cells.push(cell);
      else runs.push({ cells: [cell], key, lanes, write });
    }
    return runs;
  },

  drawRun(context, { cells, lanes, write }) {
    const first = this.box(cells[0]);
    const last = this.box(cells.at(-1));
    const [x, w, h] = [first.x, last.x + last.w - first.x, first.h - 1];
    const color = this.recording.data.lane_colors[lanes[0]];
    context.fillStyle = color;
    context.fillRect(x, first.y, w - 0.5, h);
    if (write) {
      context.fillStyle = INK;
      context.fillRect(x, first.y + h - 2, w - 0.5, 2);
    }
    if (lanes.includes(this.chosen)) {
      const line = w < 12 ? 1 : 2;
      context.strokeStyle = INK;
      context.lineWidth = line;
      context.strokeRect(x + line / 2, first.y + line / 2, w - 0.5 - line, h - line);
    }
    const text = lanes.length === 1 ? `${lanes[0]}` : `×${lanes.length}`;
    context.font = `${Math.min(10, h, Math.max(8, 0.8 * w - 1))}px sans-serif`;
    if (h < 8) return;
    context.textBaseline = "middle";
    context.textAlign = "center";
    const over = (context.measureText("31").width - w) / 2; // all lanes have a number, or none
    const place = [text, x + w / 2, first.y + h / 2 + 0.5];
    if (over > this.width - 2) return;
    if (over > 0) {
      // a white rim keeps it readable over the neighbours, which no lane touches
      if (this.now.has(cells[0] - 1) || this.now.has(cells.at(-1) + 1)) return;
      context.strokeStyle = "#FFFFFF";
      context.lineWidth = 2.5;
      context.strokeText(...place);
    }
    context.fillStyle = over > 0 ? INK : inkOn(color);
    context.fillText(...place);
  },

  // All tiles, small: which have been touched, which is shown.
  drawStrip(context, w) {
    const tiles = this.shape.tiles;
    const now = new Set([...this.now.keys()].map((cell) => this.tileOf(cell)));
    const width = w / tiles.length;
    context.textAlign = "center";
    context.textBaseline = "middle";
    tiles.forEach(({ title }, number) => {
      const here = number === this.tile;
      const start = number * this.perTile;
      const before = this.first
        .slice(start, start + this.perTile)
        .some((f) => f && f - 1 <= this.step);
      context.fillStyle = here ? INK : before ? this.shape.color : EMPTY;
      context.fillRect(number * width, 1, width - 1, 17);
      context.fillStyle = ALARM;
      if (now.has(number)) context.fillRect(number * width, 16, width - 1, 3);
      context.fillStyle = here ? "#FFFFFF" : INK;
      context.font = "10px sans-serif";
      const short = context.measureText(title).width < width - 2 ? title : `${number}`;
      if (context.measureText(short).width < width - 2)
        context.fillText(short, number * width + width / 2, 10);
    });
  },

  // Where each shared array begins: its name beside the row, a bar at its first cell.
  drawNames(context) {
    const shared = this.recording.data.arrays.filter(({ space }) => space === "shared");
    const names = new Map(); // row -> the arrays that begin in it
    for (const { name, address } of shared.sort((a, b) => a.address - b.address)) {
      const row = Math.floor(address / BANK_BYTES);
      names.set(row, [...(names.get(row) ?? []), name]);
      const cell = this.cellAt(address);
      if (cell < 0) continue;
      const { x, y, h } = this.box(cell);
      context.fillStyle = INK;
      context.fillRect(x - 2, y, 2, h - 1);
    }
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.font = "9px sans-serif";
    context.fillStyle = QUIET;
    for (const [row, here] of names)
      context.fillText(here.join(", "), 0, this.top + (row + 0.5) * this.height, MARGIN - 5);
  },

  // The number of each bank; how many words it must give, if they are several.
  drawBanks(context) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let bank = 0; bank < 32; bank++) {
      const first = this.box(bank * this.run);
      const w = this.box((bank + 1) * this.run - 1).x + first.w - first.x;
      const words = this.conflicts.get(bank) ?? 1;
      context.fillStyle = words > 1 ? ALARM : "#FFFFFF";
      context.fillRect(first.x, this.top - 14, w, 12);
      context.fillStyle = words > 1 ? "#FFFFFF" : QUIET;
      context.font = words > 1 ? "bold 10px sans-serif" : "9px sans-serif";
      const text = `${bank}`;
      if (context.measureText(text).width < w)
        context.fillText(text, first.x + w / 2, this.top - 8);
    }
  },
});

// Banks that cost time, as they must give several words in one of these instructions: bank -> how
// many
function conflictsOf(recording, now) {
  const found = new Map();
  for (const i of now.filter((i) => recording.spaceOf(i) === "shared" && recording.costsMore(i)))
    for (const [bank, words] of recording.banksOf(i))
      if (words.size > 1) found.set(bank, words.size);
  return found;
}

// A canvas of this size on the page, sharp on every screen.
function sized(canvas, w, h) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(w * ratio);
  canvas.height = Math.round(h * ratio);
  canvas.style.width = `${w}px`;
  canvas.style.height = `${h}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

// Black or white, whichever has more contrast to the colour: by WCAG, at least 4.5.
function inkOn(color) {
  const [r, g, b] = [1, 3, 5].map((at) => (parseInt(color.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000000" : "#FFFFFF";
}
