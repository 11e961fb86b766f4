// Histograms by power of two: shares of a format, bins over windows of steps, ridge lines.

// The part of bin `exponent` that lies below `limit`, as if its elements lay evenly in it.
function partBelow(limit, exponent) {
  return Math.min(Math.max(limit / 2 ** exponent - 1, 0), 1);
}

// Elements of these windows that are neither zero nor NaN: {count, underflow, subnormal, overflow}, the last
// three as shares. What is infinite already has overflowed.
function shares(bins, row, format, from = 0, to = bins.windows) {
  let count = 0, under = 0, below = 0, within = 0;
  const first = bins.starts[row * bins.windows + from];
  const last = bins.starts[row * bins.windows + to];
  for (let i = first; i < last; i++) {
    const exponent = bins.exponents[i], n = bins.counts[i];
    count += n;
    under += n * partBelow(format.underflow, exponent);
    below += n * partBelow(format.below_normal, exponent);
    within += n * partBelow(format.overflow, exponent);
  }
  for (let i = row * bins.windows + from; i < row * bins.windows + to; i++) count += bins.infinite[i];
  const all = count || 1;
  return { count, underflow: under / all, subnormal: (below - under) / all, overflow: (count - within) / all };
}

// Bins of a window as [[exponent, count], …].
function binsOf(bins, row, window) {
  const found = [];
  for (let i = bins.starts[row * bins.windows + window]; i < bins.starts[row * bins.windows + window + 1]; i++) {
    found.push([bins.exponents[i], bins.counts[i]]);
  }
  return found;
}

function span(bins, row) {
  let low = Infinity, high = -Infinity;
  for (let i = bins.starts[row * bins.windows]; i < bins.starts[(row + 1) * bins.windows]; i++) {
    low = Math.min(low, bins.exponents[i]);
    high = Math.max(high, bins.exponents[i]);
  }
  return low <= high ? [low, high] : [-8, 0];
}

// The exponents shown: those in use and, where they are near, the format's limits.
function shownSpan(bins, row, format) {
  let [low, high] = span(bins, row);
  const near = 10;
  for (const limit of [format.subnormal, format.normal, format.largest]) {
    const at = Math.log2(limit);
    if (at < low && at > low - near) low = Math.floor(at) - 1;
    if (at > high && at < high + near) high = Math.ceil(at) + 1;
  }
  return [low - 1, high + 2];
}

// [columns of the run that a window takes together, its first and last step as text]
function windowSteps(run, window) {
  const { columns, bins, width } = run;
  const from = Math.floor(window * bins.width / width);
  const to = Math.min(Math.ceil((window + 1) * bins.width / width), columns.length) - 1;
  return [from, to, from === to && bins.width === 1 ? `step ${columns[from]}` : `steps ${columns[from]} to ${columns[to]}`];
}

function windowOf(run, column) {
  return Math.min(Math.floor(column * run.width / run.bins.width), run.bins.windows - 1);
}

function exponentModel(run, row, format) {
  const { bins } = run;
  const [low, high] = shownSpan(bins, row, format);
  const rows = high - low, columns = bins.windows;
  const values = new Float64Array(rows * columns).fill(NaN);
  for (let window = 0; window < columns; window++) {
    for (const [exponent, count] of binsOf(bins, row, window)) {
      values[(high - 1 - exponent) * columns + window] = Math.log2(count);
    }
  }
  const [, most] = extent(values);
  const at = (value) => high - Math.log2(value);
  const counts = (r, c) => values[r * columns + c];
  return {
    name: 'exponents', rows, columns, height: 300,
    levels: leveled(values, 0, most),
    columnLabel: (c) => String(run.columns[windowSteps(run, c)[0]]),
    rowScale: (top, bottom, most_) => ticks(high - bottom, high - top, most_)
      .filter((e) => e === Math.round(e)).map((e) => [high - e, power(e)]),
    describe: (r, c) => {
      const count = counts(r, c);
      const edge = high - 1 - r;
      return [windowSteps(run, c)[2], `${power(edge)} ≤ |x| < ${power(edge + 1)}`,
        Number.isNaN(count) ? 'no element' : plural(2 ** count, 'element')];
    },
    legend: { low: '1', high: `${whole(2 ** most)} elements` },
    bands: [
      { from: at(format.subnormal / 2), to: rows, color: 'band-bad' },
      { from: at(format.normal), to: at(format.subnormal / 2), color: 'band-warn' },
      { from: 0, to: at(format.largest), color: 'band-bad' },
    ],
    rules: [
      { at: at(format.largest), text: `${format.name} largest ${figure(format.largest, 6)}`, dash: [] },
      { at: at(format.normal), text: `smallest normal ${power(Math.log2(format.normal))}`, dash: [6, 3] },
      { at: at(format.subnormal), text: `smallest subnormal ${power(Math.log2(format.subnormal))}`, dash: [2, 3] },
    ],
    exponents: [low, high], counts: values,
  };
}

function* exponentRows(run, row) {
  yield ['step', 'last_step', 'exponent', 'count'];
  for (let window = 0; window < run.bins.windows; window++) {
    const [from, to] = windowSteps(run, window);
    for (const [exponent, count] of binsOf(run.bins, row, window)) {
      yield [run.columns[from], run.columns[to], exponent, count];
    }
  }
}

// One line a step, the newest in front; where they would be too close, steps are added up.
class Ridges extends Plot {
  constructor(options) {
    super({ role: 'ridge lines', keys: 'Left and right arrow keys read steps.', height: 300, ...options });
  }

  show(run, row, format) {
    if (this.run !== run || this.row !== row) this.at = undefined;
    this.run = run;
    this.row = row;
    this.format = format;
    this.height = Math.min(Math.max(run.bins.windows * 8 + 90, 240), 520);
    this.redraw();
  }

  ready() { return Boolean(this.run); }

  draw(context) {
    const { run, row, format } = this;
    const { bins } = run;
    const [low, high] = shownSpan(bins, row, format);
    const box = { x: 58, y: 44, w: this.width - 70, h: this.height - 44 - 34 };
    const together = Math.max(1, Math.ceil(bins.windows / Math.floor(box.h / 7)));
    const ridges = Math.ceil(bins.windows / together);
    const lines = Array.from({ length: ridges }, (_, i) => this.summed(i * together, together, low, high));
    const top = Math.max(1, ...lines.map((one) => Math.max(...one)));
    const x = (e) => box.x + (e - low) / (high - low) * box.w;
    for (const limit of [format.subnormal, format.normal, format.largest]) {
      const at = Math.log2(limit);
      if (at >= low && at <= high) line(context, x(at), 12, x(at), box.y + box.h, ink('alarm'), 1, [5, 4]);
    }
    const gap = ridges > 1 ? box.h / (ridges - 1) : 0;
    const every = Math.max(1, Math.ceil(13 / (gap || 13)));
    lines.forEach((counts, i) => {
      const floor = ridges > 1 ? box.y + i * gap : box.y + box.h;
      this.drawRidge(context, counts, floor, top, x, low);
      if (i % every === 0) {
        const [from] = windowSteps(run, i * together);
        write(context, String(run.columns[from]), box.x - 8, floor, ink('muted'), 'right');
      }
    });
    for (const e of ticks(low, high, box.w / 60)) {
      if (e === Math.round(e)) write(context, power(e), x(e), box.y + box.h + 12, ink('muted'), 'center');
    }
    write(context, 'magnitude', box.x + box.w / 2, box.y + box.h + 26, ink('muted'), 'center');
    write(context, 'step', 6, box.y - 16, ink('muted'));
    if (this.at === undefined) this.say(together > 1 ? `${plural(ridges, 'line')}: each adds up ${together * bins.width} steps.` : '');
  }

  key(event) {
    const to = this.run && stepped(event.key, this.at, this.run.bins.windows - 1);
    if (to === undefined || to === false || to < 0) return false;
    this.at = to;
    const bins = binsOf(this.run.bins, this.row, to);
    const [most, count] = bins.reduce((one, two) => (two[1] > one[1] ? two : one), [0, 0]);
    const total = bins.reduce((sum, [, n]) => sum + n, 0);
    this.say(`${windowSteps(this.run, to)[2]}: ${plural(total, 'element')}${total ? `, most (${whole(count)}) with ${binText(most)}` : ''}`);
    return true;
  }

  summed(first, together, low, high) {
    const { bins } = this.run;
    const counts = new Float64Array(high - low);
    for (let window = first; window < Math.min(first + together, bins.windows); window++) {
      for (const [exponent, count] of binsOf(bins, this.row, window)) counts[exponent - low] += count;
    }
    return counts;
  }

  drawRidge(context, counts, floor, top, x, low) {
    context.beginPath();
    context.moveTo(x(low), floor);
    counts.forEach((count, i) => context.lineTo(x(low + i + 0.5), floor - 40 * count / top));
    context.lineTo(x(low + counts.length), floor);
    context.fillStyle = ink('ridge');
    context.fill();
    context.strokeStyle = runColor(0);
    context.lineWidth = 1;
    context.stroke();
  }
}

// Bars of one cell, of several runs beside each other.
class Bars extends Plot {
  constructor(options) {
    super({ role: 'histogram', keys: 'Left and right arrow keys read bins.', height: 170, ...options });
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
  }

  // parts: [{title, bins: [[exponent, count]], color}]
  show(parts) {
    this.parts = parts.filter((part) => part.bins.length);
    this.at = undefined;
    this.redraw();
  }

  ready() { return Boolean(this.parts); }

  draw(context) {
    const all = this.parts.flatMap((part) => part.bins);
    if (!all.length) {
      write(context, 'no finite element other than zero', 10, 20, ink('muted'));
      return;
    }
    let low = Math.min(...all.map(([e]) => e)) - 1, high = Math.max(...all.map(([e]) => e)) + 2;
    [low, high] = high - low < 12 ? [low - 4, high + 4] : [low, high];
    const top = Math.max(...all.map(([, n]) => n));
    const box = this.area = { x: 58, y: 8, w: this.width - 68, h: this.height - 8 - 22, low, high };
    const unit = box.w / (high - low);
    for (const count of ticks(0, top, 3)) {
      const y = box.y + box.h - count / top * box.h;
      line(context, box.x, y, box.x + box.w, y, ink('grid'));
      write(context, whole(count), box.x - 6, y, ink('muted'), 'right');
    }
    const wide = unit * 0.86 / this.parts.length;
    this.parts.forEach((part, i) => {
      context.fillStyle = runColor(part.color);
      for (const [e, n] of part.bins) {
        const tall = Math.max(1.5, n / top * box.h);
        context.fillRect(box.x + (e - low) * unit + i * wide, box.y + box.h - tall, Math.max(wide, 1), tall);
      }
    });
    for (const e of ticks(low, high, box.w / 56)) {
      if (e === Math.round(e)) write(context, power(e), box.x + (e - low) * unit, box.y + box.h + 12, ink('muted'), 'center');
    }
  }

  hover(event) {
    if (!this.area || !this.parts.length) return;
    const { x, w, low, high } = this.area;
    this.tell(event, this.lines(Math.floor(low + (this.point(event)[0] - x) / w * (high - low))));
  }

  lines(exponent) {
    const count = (part) => part.bins.find(([one]) => one === exponent)?.[1] ?? 0;
    return [binText(exponent), ...this.parts.map((part) => `${part.title}: ${whole(count(part))}`)];
  }

  key(event) {
    const all = this.parts?.flatMap((part) => part.bins.map(([e]) => e)) || [];
    if (!all.length) return false;
    const low = Math.min(...all), to = stepped(event.key, this.at, Math.max(...all) - low);
    if (to === undefined) return false;
    this.at = to;
    this.say(this.lines(low + to).join(', '));
    return true;
  }
}

function binText(exponent) {
  return `${power(exponent)} ≤ |x| < ${power(exponent + 1)}`;
}
