// An instruction, and an element, in words.

Object.assign(Microscope.prototype, {
  // In bold: what an access costs, if that is more than it must.
  inWords(i) {
    const r = this.recording;
    const lanes = r.lanesOf(i);
    const array = r.arrayOf(i);
    const head = `Instruction ${(i + 1).toLocaleString("en")} of ${r.length.toLocaleString("en")} · warp ${r.warp[i]} · `;
    if (!array) {
      const { lane } = this.state;
      const from =
        r.kindOf(i) === "shuffle" && lane !== null && r.works(i, lane)
          ? `: lane ${lane} reads from lane ${r.value(i, lane)}`
          : "";
      return [
        `${head}${r.kindOf(i)} of ${plural(lanes.length, "lane")}${from} · ${r.placeOf(i).text}`,
      ];
    }
    const words = `${head}${DOES[r.kindOf(i)]} ${array.name}, as ${r.placeOf(i).text} · ${plural(lanes.length, "lane")}, ${plural(r.num_bytes[i], "byte")} each`;
    if (array.space === "local") return [words];
    const cost =
      array.space === "global"
        ? `${plural(r.sectors[i], "sector")} (${r.ideal_sectors[i]} at best)`
        : `${plural(r.wavefronts[i], "wavefront")} (${r.ideal[i]} at best)`;
    return [`${words} · `, element(r.costsMore(i) ? "b" : "span", {}, cost)];
  },

  // What the lane that is followed does here; which lanes share a bank.
  aboutLanes(i) {
    const r = this.recording;
    const lines = [];
    const lane = this.state.lane ?? this.state.marked;
    const array = r.arrayOf(i);
    if (lane !== null && array && r.works(i, lane)) {
      const [first, count] = [r.value(i, lane), r.num_bytes[i]];
      lines.push(
        `lane ${lane} of warp ${r.warp[i]} ${DOES[r.kindOf(i)]} ${this.bytesInWords(array, first, count)}`,
      );
    }
    if (array?.space === "shared") lines.push(...this.aboutBanks(i, lane));
    return lines;
  },

  // Which lanes want different words of one bank, and whom the lane that is followed meets.
  aboutBanks(i, lane) {
    const lines = [];
    const groups = new Map(); // lanes that meet, by word -> the banks in which they do
    const company = new Map(); // who wants the word of the lane that is followed, and who another
    const note = (map, key, bank) => map.set(key, [...(map.get(key) ?? []), bank]);
    const costsMore = this.recording.costsMore(i);
    for (const [bank, words] of this.recording.banksOf(i)) {
      const wanted = [...words.values()];
      if (words.size > 1 && costsMore) note(groups, wanted.map(lanesInWords).join("; another for "), bank);
      if (!wanted.flat().some((one) => one !== lane) || !wanted.flat().includes(lane)) continue;
      const text = wanted.map((lanes) => {
        const mine = lanes.includes(lane);
        return `${mine ? "the same word for" : "another one for"} ${lanesInWords(lanes)}`;
      });
      note(company, text.sort((a, b) => b.localeCompare(a)).join("; "), bank);
    }
    for (const [key, banks] of groups)
      lines.push(element("b", {}, `${banksInWords(banks)}: a word for ${key}`));
    for (const [key, banks] of company)
      lines.push(`with lane ${lane} in ${banksInWords(banks)}: ${key}`);
    return lines;
  },

  bytesInWords(array, first, count) {
    const shared = array.space === "shared"; // its addresses count from the block's first byte
    const from = first - (shared ? 0 : array.address);
    const range = `${from.toLocaleString("en")}–${(from + count - 1).toLocaleString("en")}`;
    const where = `bytes ${range} of ${shared ? "shared memory" : array.name}`;
    const grid = this.grids.find((g) => g.space === array.space && g.cellAt(first) >= 0);
    const labels = grid && array.space === "global" ? spans(grid, first, count) : [];
    const names = this.recording.namesOf(array.space, first)[0];
    return [where, ...labels, names ? `beginning at ${names}` : ""].filter(Boolean).join(" · ");
  },

  // An element in words: its names, its place in the layout, its bytes, who is at it now.
  meaning(grid, cell) {
    const r = this.recording;
    const address = grid.address(cell);
    const { array } = grid.shape;
    const names = r.namesOf(grid.space, address, grid.space === "local" ? array : null);
    const lines = [names.join(" or ") || "no element begins here"];
    const labels = grid.labels(cell).map(([name, n]) => `${name} ${n}`);
    if (labels.length) lines.push(labels.join(" · "));
    const start = grid.space === "global" ? r.data.arrays[array].address : 0;
    const of =
      grid.space === "global"
        ? ` of ${r.data.arrays[array].name} (address ${address})`
        : grid.space === "shared"
          ? " of shared memory"
          : "";
    lines.push(`byte ${(address - start).toLocaleString("en")}${of}`);
    const now = grid.now.get(cell);
    if (now)
      lines.push(
        `now: ${DONE[now.kind]} by lane${now.lanes.length > 1 ? "s" : ""} ${inWords(now.lanes)}`,
      );
    else if (grid.first[cell] && grid.first[cell] - 1 <= grid.step)
      lines.push(`touched earlier, first by instruction ${grid.first[cell].toLocaleString("en")}`);
    return lines;
  },
});

// The labels of some bytes of a pane: "element 4–7"
function spans(grid, first, count) {
  const last = grid.cellAt(first + count - 1);
  const ends = [grid.labels(grid.cellAt(first)), grid.labels(last < 0 ? grid.cellAt(first) : last)];
  return ends[0].map(([name, a], k) =>
    ends[1][k][1] === a ? `${name} ${a}` : `${name} ${a}–${ends[1][k][1]}`,
  );
}

const DONE = { read: "read", write: "written", atomic: "changed" };
const inOrder = (numbers) => inWords([...numbers].sort((a, b) => a - b));
const lanesInWords = (lanes) => `lane${lanes.length > 1 ? "s" : ""} ${inOrder(lanes)}`;
const banksInWords = (banks) => `bank${banks.length > 1 ? "s" : ""} ${inOrder(banks)}`;
