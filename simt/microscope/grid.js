// A pane: an array cut into tiles, each a grid of cells, with the lanes on the cells they touch.

const GAP = 3; // pixels after a run of cells
const MARGIN = 84; // pixels left of shared memory, for the names of its arrays
const MOST = { width: 24, height: 12, rows: 300 }; // pixels of a cell, and of all rows

class Grid {
  // shape: as pane_as_data makes it; matches(i): does an instruction belong to this pane?
  constructor(recording, shape, space, matches) {
    Object.assign(this, { recording, shape, space, matches });
    this.rows = combined(shape.rows);
    this.columns = combined(shape.columns);
    this.run = shape.columns.length > 1 ? shape.columns.at(-1).size : Infinity;
    this.perTile = this.rows.length * this.columns.length;
    this.tile = 0;
    this.cursor = null;
    this.makeIndex();
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", shape.title);
  }

  // Byte address of a cell, of all tiles.
  address(cell) {
    const inside = cell % this.perTile;
    const row = this.rows[Math.floor(inside / this.columns.length)];
    return this.shape.tiles[this.tileOf(cell)].address + row.offset + this.column(cell).offset;
  }

  tileOf(cell) {
    return Math.floor(cell / this.perTile);
  }

  column(cell) {
    return this.columns[cell % this.columns.length];
  }

  row(cell) {
    return this.rows[Math.floor((cell % this.perTile) / this.columns.length)];
  }

  // From address to cell: a table, or a map where the addresses are far apart.
  makeIndex() {
    const count = this.shape.tiles.length * this.perTile;
    this.first = new Int32Array(count); // 1 + the first instruction that touches a cell; 0: none
    this.latest = new Int32Array(this.recording.length); // by instruction: the tile touched last
    let [low, high] = [Infinity, -Infinity];
    for (let cell = 0; cell < count; cell++) {
      const unit = this.address(cell) / this.shape.unit;
      low = Math.min(low, unit);
      high = Math.max(high, unit);
    }
    this.low = low;
    const near = high - low < 4e6;
    this.cells = near ? new Int32Array(high - low + 1).fill(-1) : new Map();
    for (let cell = 0; cell < count; cell++) {
      const unit = this.address(cell) / this.shape.unit - low;
      if (near) this.cells[unit] = cell;
      else this.cells.set(unit, cell);
    }
  }

  // A tile may reach past the ends of its array.
  exists(cell) {
    const address = this.address(cell);
    return this.shape.low <= address && address < this.shape.end;
  }

  cellAt(address) {
    const unit = Math.floor(address / this.shape.unit) - this.low;
    return (this.cells instanceof Map ? this.cells.get(unit) : this.cells[unit]) ?? -1;
  }

  // Calls each(cell, lane) for every cell that an instruction touches.
  touched(i, lanes, each) {
    const { recording, shape } = this;
    for (const lane of lanes) {
      const start = recording.value(i, lane);
      for (let at = start; at < start + recording.num_bytes[i]; at += shape.unit) {
        const cell = this.cellAt(at);
        if (cell >= 0) each(cell, lane);
      }
    }
  }

  // Which cells have been touched before: all over again, for the lanes that are followed.
  remember(follows, lanesOf) {
    this.first.fill(0);
    let tile = 0;
    for (let i = 0; i < this.recording.length; i++) {
      if (this.matches(i) && follows(i)) {
        let lowest = Infinity;
        this.touched(i, lanesOf(i), (cell) => {
          this.first[cell] ||= i + 1;
          lowest = Math.min(lowest, cell);
        });
        if (lowest < Infinity) tile = this.tileOf(lowest);
      }
      this.latest[i] = tile;
    }
  }

  // now: instructions to show; lanesOf(i): which of their lanes; step: how far we are
  show({ now, lanesOf, step, picked, chosen }) {
    this.now = new Map(); // cell -> {lanes, kind, write}
    for (const i of now.filter((i) => this.matches(i))) {
      const kind = this.recording.kindOf(i);
      this.touched(i, lanesOf(i), (cell, lane) => {
        const here = this.now.get(cell) ?? { lanes: [], kind, write: false };
        if (!here.lanes.includes(lane)) here.lanes.push(lane);
        here.write ||= kind !== "read";
        this.now.set(cell, here);
      });
    }
    const moved = this.step !== step;
    Object.assign(this, { step, picked, chosen });
    this.conflicts = this.shape.array === null ? conflictsOf(this.recording, now) : new Map();
    if (moved) this.tile = this.latest[step];
    this.draw();
  }

  // Where a cell stands, in pixels of the page.
  box(cell) {
    const inside = cell % this.perTile;
    const column = inside % this.columns.length;
    const row = Math.floor(inside / this.columns.length);
    const x = this.left + column * this.width + Math.floor(column / this.run) * this.gap;
    return { x, y: this.top + row * this.height, w: this.width, h: this.height };
  }

  // Sizes for the room that there is. Returns the size of the canvas.
  layout() {
    this.banks = this.shape.array === null;
    this.left = this.banks ? MARGIN : 1;
    const room = (this.canvas.closest(".room")?.clientWidth || 600) - 1 - this.left;
    const count = this.columns.length;
    const gaps = Math.ceil(count / this.run) - 1;
    const widthWith = (gap) => Math.max(2, Math.min(MOST.width, (room - gaps * gap) / count));
    this.gap = widthWith(GAP) * this.run > 12 ? GAP : 1;
    this.width = widthWith(this.gap);
    this.height = Math.max(5, Math.min(MOST.height, MOST.rows / this.rows.length));
    this.strip = this.shape.tiles.length > 1;
    this.top = (this.strip ? 22 : 0) + (this.banks ? 15 : 1);
    const w = count * this.width + gaps * this.gap; // more than the room for very many columns
    return {
      w: this.left + (this.strip ? Math.max(w, room) : w) + 1,
      h: this.top + this.rows.length * this.height + 2,
    };
  }

  // What is under a point: {cell}, {tile}, or null.
  under(x, y) {
    if (this.strip && y < 20) {
      const width = this.canvas.clientWidth / this.shape.tiles.length;
      return { tile: Math.min(Math.floor(x / width), this.shape.tiles.length - 1) };
    }
    const row = Math.floor((y - this.top) / this.height);
    if (row < 0 || row >= this.rows.length) return null;
    for (let column = 0; column < this.columns.length; column++) {
      const cell = this.tile * this.perTile + row * this.columns.length + column;
      const box = this.box(cell);
      if (x >= box.x && x < box.x + box.w + 0.5) return this.exists(cell) ? { cell } : null;
    }
    return null;
  }

  // The meaning of a cell: [[name, number]]
  labels(cell) {
    const values = {
      ...this.shape.tiles[this.tileOf(cell)].values,
      ...this.row(cell).values,
      ...this.column(cell).values,
    };
    return Object.entries(this.shape.labels).map(([name, terms]) => [
      name,
      Object.entries(terms).reduce((sum, [term, factor]) => sum + values[term] * factor, 0),
    ]);
  }
}

// All places along some axes, in order: {offset, values}
function combined(axes) {
  return axes.reduce(
    (all, { name, size, stride }) =>
      all.flatMap(({ offset, values }) =>
        [...Array(size).keys()].map((n) => ({
          offset: offset + n * stride,
          values: { ...values, [name]: n },
        })),
      ),
    [{ offset: 0, values: {} }],
  );
}
