// Ticks between two logarithms: powers of ten, or 1, 2, 5 of them where there are few.
function decades(low, high, most) {
  const every = Math.max(1, Math.ceil((high - low) / most));
  const digits = high - low < 1 ? [1, 2, 3, 5, 7] : high - low < 2.5 ? [1, 2, 5] : [1];
  const found = [];
  for (let k = Math.floor(low); k <= high; k++) {
    if (k % every) continue;
    for (const digit of digits) {
      const at = k + Math.log10(digit);
      if (at < low || at > high) continue;
      found.push([at, digit === 1 ? power(k, 10) : figure(Number(`${digit}e${k}`), 2)]);
    }
  }
  return found.length > 1 ? found : ticks(low, high, most).map((at) => [at, figure(10 ** at, 3)]);
}

// Lines over steps; every point is drawn, what is not finite is marked at the upper edge.

class Curves extends Plot {
  constructor(options) {
    super({ role: 'line chart', keys: 'Left and right arrow keys read values.', height: 200, ...options });
    this.onpick = options.onpick || (() => {});
    this.canvas.addEventListener('pointermove', (event) => {
      const at = this.model && this.columnAt(this.point(event)[0]);
      this.tell(event, at === null || at === undefined ? null : this.lines(at));
    });
    this.canvas.addEventListener('click', (event) => {
      const at = this.model && this.columnAt(this.point(event)[0]);
      if (at !== null && at !== undefined) this.moveTo(at, true);
    });
  }

  // model: {series: [{title, steps, values, color (run number), dash}], log, marks: [{step, text}]}
  show(model) {
    this.model = model;
    const steps = new Set();
    for (const one of model.series) for (const step of one.steps) steps.add(step);
    this.steps = Float64Array.from(steps).sort();
    this.places = model.series.map((one) => new Map(Array.from(one.steps, (step, i) => [step, i])));
    if (this.at >= this.steps.length) this.at = undefined;
    this.redraw();
  }

  ready() { return Boolean(this.model); }

  range() {
    if (this.model.range) return this.model.range;
    let low = Infinity, high = -Infinity;
    for (const one of this.model.series) {
      for (const raw of one.values) {
        const value = this.scaled(raw);
        if (value > -Infinity && value < low) low = value;
        if (value < Infinity && value > high) high = value;
      }
    }
    return axisEnds(low, high, this.model.log);
  }

  scaled(value) {
    if (!this.model.log) return value;
    return value > 0 ? Math.log10(value) : NaN;
  }

  draw(context) {
    const marks = this.model.marks || [];
    const top = 10 + 14 * marks.length; // the marks' words stand above, where they hide nothing
    const box = this.area = { x: 52, y: top, w: this.width - 62, h: this.height - top - 32 };
    const [low, high] = this.range();
    const first = this.steps[0] ?? 0, last = this.steps[this.steps.length - 1] ?? 1;
    this.x = (step) => box.x + (last > first ? (step - first) / (last - first) : 0.5) * box.w;
    const y = (value) => box.y + box.h - (value - low) / (high - low) * box.h;
    this.drawAxes(context, box, low, high, y, first, last);
    for (const one of this.model.series) this.drawSeries(context, one, y, box);
    marks.forEach((mark, row) => {
      const x = this.x(mark.step), right = x > box.x + box.w / 2;
      line(context, x, 2 + 14 * row, x, box.y + box.h, ink('alarm'), 1.2, [5, 4]);
      write(context, mark.text, x + (right ? -5 : 5), 8 + 14 * row, ink('alarm'), right ? 'right' : 'left');
    });
    if (this.at !== undefined) {
      const x = this.x(this.steps[this.at]);
      line(context, x, box.y, x, box.y + box.h, ink('focus'), 1);
    }
  }

  drawAxes(context, box, low, high, y, first, last) {
    for (const [value, text] of this.model.log ? decades(low, high, box.h / 34)
      : ticks(low, high, box.h / 34).map((v) => [v, figure(v)])) {
      line(context, box.x, y(value), box.x + box.w, y(value), ink('grid'));
      write(context, text, box.x - 6, y(value), ink('muted'), 'right');
    }
    for (const step of ticks(first, last, box.w / 90)) {
      if (step !== Math.round(step)) continue;
      write(context, String(step), this.x(step), box.y + box.h + 11, ink('muted'), 'center');
    }
    write(context, 'step', box.x + box.w / 2, box.y + box.h + 24, ink('muted'), 'center');
  }

  drawSeries(context, one, y, box) {
    context.save();
    context.strokeStyle = context.fillStyle = runColor(one.color);
    context.lineWidth = 1.6;
    context.setLineDash(one.dash || []);
    context.beginPath();
    let open = false;
    for (let i = 0; i < one.values.length; i++) {
      const value = this.scaled(one.values[i]);
      if (!Number.isFinite(value)) { open = false; continue; }
      const x = this.x(one.steps[i]);
      if (open) context.lineTo(x, y(value)); else context.moveTo(x, y(value));
      const alone = !open && !Number.isFinite(this.scaled(one.values[i + 1]));
      if (alone) context.fillRect(x - 2, y(value) - 2, 4, 4);
      open = true;
    }
    context.stroke();
    context.restore();
    context.fillStyle = ink('alarm');
    (one.bad || []).forEach((step) => context.fillRect(this.x(step) - 1.5, box.y, 3, 6));
  }

  columnAt(x) {
    if (!this.area || !this.steps.length || x < this.area.x - 8 || x > this.area.x + this.area.w + 8) return null;
    let best = 0;
    let low = 0, high = this.steps.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (Math.abs(this.x(this.steps[middle]) - x) < Math.abs(this.x(this.steps[best]) - x)) best = middle;
      if (this.x(this.steps[middle]) < x) low = middle + 1; else high = middle - 1;
    }
    return best;
  }

  lines(at) {
    const step = this.steps[at];
    const values = this.model.series.map((one, i) => {
      const place = this.places[i].get(step);
      return place === undefined ? null : `${one.title}: ${figure(one.values[place], 7)}`;
    });
    return [`step ${step}`, ...values.filter(Boolean)];
  }

  moveTo(at, picked) {
    this.at = at;
    this.say(this.lines(at).join(', '));
    this.redraw();
    if (picked) this.onpick(this.steps[at]);
  }

  key(event) {
    if (!this.model || !this.steps.length) return false;
    const to = event.key === 'Enter' ? Math.max(this.at ?? 0, 0) : stepped(event.key, this.at, this.steps.length - 1);
    if (to === undefined) return false;
    this.moveTo(to, event.key === 'Enter');
    return true;
  }
}

function legendOf(series) {
  const entry = (one) => {
    const swatch = h('canvas', { width: 44, height: 12, class: 'swatch', 'aria-hidden': 'true' });
    const context = swatch.getContext('2d');
    line(context, 0, 6, 44, 6, runColor(one.color), 4, (one.dash || []).map((d) => 2 * d));
    return h('li', {}, swatch, one.title);
  };
  return h('ul', { class: 'legend' }, series.map(entry));
}
