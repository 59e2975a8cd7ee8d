// What one thread block did, ready to be asked. Nothing here draws.

const NO_TURN = -1;

function unpacked({ type, data }) {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  return new globalThis[type](bytes.buffer);
}

class Recording {
  constructor(data) {
    this.data = data;
    for (const [name, column] of Object.entries(data.columns)) this[name] = unpacked(column);
    this.length = this.warp.length;
    this.lanesOfMask = new Map();
    this.totals = ["sectors", "ideal_sectors", "wavefronts", "ideal"].map((name) => {
      let sum = 0;
      return [name, Float64Array.from(this[name], (n) => (sum += n))];
    });
  }

  // The lanes at work in an instruction, rising.
  lanesOf(i) {
    const mask = this.lanes[i];
    if (!this.lanesOfMask.has(mask)) {
      const all = [...Array(32).keys()];
      this.lanesOfMask.set(
        mask,
        all.filter((lane) => (mask >>> lane) & 1),
      );
    }
    return this.lanesOfMask.get(mask);
  }

  works(i, lane) {
    return ((this.lanes[i] >>> lane) & 1) === 1;
  }

  // Byte address of a lane; of a shuffle, the lane that it reads from.
  value(i, lane) {
    return this.base[i] + this.patterns[this.pattern[i] * 32 + lane];
  }

  kindOf(i) {
    return this.data.kinds[this.kind[i]];
  }

  spaceOf(i) {
    return this.data.spaces[this.space[i]];
  }

  // null for what is no access
  arrayOf(i) {
    return this.array[i] ? this.data.arrays[this.array[i] - 1] : null;
  }

  placeOf(i) {
    return this.data.places[this.place[i]];
  }

  // The lines of an instruction: its own, and those of the calls and loops around it, outermost
  // first: {source, line, turn (of a loop), loop, key}. Two instructions of one visit to a line
  // have the same key.
  linesOf(i) {
    let key = "";
    const around = this.data.ways[this.way[i]].map(([place, turn]) => {
      const { source, line, loop } = this.data.places[place];
      key += `${place}:${turn} `;
      return { source, line, turn, loop: turn === NO_TURN ? null : loop, key };
    });
    const { source, line } = this.placeOf(i);
    return [...around, { source, line, turn: NO_TURN, loop: null, key: `${key}@${i}` }];
  }

  // Everything that touches a byte of [first, end) of a space: {i, lane}. Local arrays belong to
  // one lane of one warp: `owner` is {warp, lane, array}.
  accesses(space, first, end, owner = null) {
    const found = [];
    const wanted = this.data.spaces.indexOf(space);
    for (let i = 0; i < this.length; i++) {
      if (this.space[i] !== wanted) continue;
      if (owner && (this.warp[i] !== owner.warp || this.array[i] - 1 !== owner.array)) continue;
      for (const lane of owner ? [owner.lane] : this.lanesOf(i)) {
        if (!this.works(i, lane)) continue;
        const address = this.value(i, lane);
        if (address < end && first < address + this.num_bytes[i]) found.push({ i, lane });
      }
    }
    return found;
  }

  // The sums of all columns of costs, up to an instruction and with it.
  soFar(i) {
    return Object.fromEntries(this.totals.map(([name, sums]) => [name, sums[i]]));
  }

  // Does an access take more sectors or wavefronts than it must?
  costsMore(i) {
    return this.sectors[i] > this.ideal_sectors[i] || this.wavefronts[i] > this.ideal[i];
  }

  // Which lanes want which word of each bank, in an access to shared memory:
  // bank -> word -> lanes
  banksOf(i) {
    const banks = new Map();
    for (const lane of this.lanesOf(i)) {
      const first = this.value(i, lane) >> 2;
      const last = (this.value(i, lane) + this.num_bytes[i] - 1) >> 2;
      for (let word = first; word <= last; word++) {
        const words = banks.get(word % 32) ?? new Map();
        banks.set(word % 32, words.set(word, [...(words.get(word) ?? []), lane]));
      }
    }
    return banks;
  }

  // Names of the elements that begin at an address: logits[17]
  namesOf(space, address, local = null) {
    const names = [];
    this.data.arrays.forEach((array, number) => {
      if (array.space !== space || (local !== null && number !== local)) return;
      const index = indexOf(array, address);
      if (index === null) return;
      const inside = `[${index.join(", ")}]`;
      names.push([array.name, ...array.aliases].map((name) => name + inside).join(" = "));
    });
    return names;
  }

  // The element with a name as a reader writes it, k_cache[2826] or q_vecs[1, 6, 0]:
  // {space, address, bytes}. Throws an Error that says what is allowed.
  find(text) {
    const match = /^\s*(\w+)\s*\[([\d\s,]+)\]\s*$/.exec(text);
    if (!match) throw new Error("write a name and an index, as in logits[17]");
    const known = this.data.arrays.filter((array) => array.space !== "local");
    const array =
      known.find(({ name }) => name === match[1]) ??
      known.find(({ aliases }) => aliases.includes(match[1]));
    if (!array && this.data.arrays.some(({ name }) => name === match[1]))
      throw new Error(`${match[1]} is local: each lane has one; pick it in its pane`);
    if (!array) {
      const names = known.flatMap(({ name, aliases }) => [name, ...aliases]);
      throw new Error(`no array ${match[1]}; there are ${names.join(", ")}`);
    }
    const index = match[2].split(",").map(Number);
    const fits =
      index.length === array.shape.length && index.every((n, axis) => n < array.shape[axis]);
    if (!fits) {
      const ends = [array.shape.map(() => 0), array.shape.map((n) => n - 1)];
      const [first, last] = ends.map((end) => `${match[1]}[${end.join(", ")}]`);
      throw new Error(`there are ${first} to ${last}`);
    }
    const items = index.reduce((sum, n, axis) => sum + n * array.strides[axis], 0);
    const address = array.address + items * array.itemsize;
    return { space: array.space, address, bytes: array.itemsize, text: text.trim() };
  }
}

// Index along each axis of the element at a byte address; null: no element begins there.
function indexOf({ address: start, itemsize, shape, strides }, address) {
  const items = (address - start) / itemsize;
  const back = shape.reduce((sum, n, axis) => sum + Math.min(strides[axis], 0) * (n - 1), 0);
  let rest = items - back;
  if (!Number.isInteger(rest) || rest < 0) return null;
  const index = shape.map(() => 0);
  const axes = shape.map((_, axis) => axis);
  axes.sort((a, b) => Math.abs(strides[b]) - Math.abs(strides[a]));
  for (const axis of axes) {
    const step = Math.abs(strides[axis]);
    if (step && shape[axis] !== 1) {
      index[axis] = Math.floor(rest / step);
      rest %= step;
    }
    if (strides[axis] < 0) index[axis] = shape[axis] - 1 - index[axis];
  }
  return rest === 0 && index.every((n, axis) => n >= 0 && n < shape[axis]) ? index : null;
}

// 0 1 2 3 8 -> "0–3, 8"; every second one -> "0, 2, …, 30"
function inWords(numbers) {
  const step = numbers[1] - numbers[0];
  if (numbers.length > 3 && step > 1 && numbers.every((n, k) => n === numbers[0] + k * step))
    return `${numbers[0]}, ${numbers[1]}, …, ${numbers.at(-1)}`;
  const runs = [];
  for (const n of numbers) {
    if (runs.length && runs.at(-1)[1] === n - 1) runs.at(-1)[1] = n;
    else runs.push([n, n]);
  }
  return runs
    .map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a}, ${b}` : `${a}–${b}`))
    .join(", ");
}

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
