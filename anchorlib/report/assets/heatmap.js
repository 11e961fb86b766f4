// Rows × columns of levels. Where a pixel stands for several cells it shows the highest of them.

class HeatMap extends Plot {
  constructor(options) {
    super({
      role: 'heat map',
      keys: 'Arrow keys move, Enter selects, plus and minus zoom, 0 shows all.',
      height: 320,
      ...options,
    });
    this.onpick = options.onpick || (() => {});
    this.listen();
  }

  // model: {rows, columns, levels (Uint8Array), rowLabel(r) or rowScale, columnLabel(c),
  //   describe(r, c) -> lines, legend: {low, high, extra}, unit (of the columns), sections, marks, rules, bands, height}
  show(model, cursor = null) {
    const same = this.model && this.model.rows === model.rows && this.model.columns === model.columns
      && this.model.name === model.name;
    this.model = model;
    this.height = model.height;
    if (!same) this.whole();
    this.cursor = cursor;
    this.redraw();
  }

  ready() { return Boolean(this.model); }

  whole() {
    this.view = { top: 0, bottom: this.model.rows, left: 0, right: this.model.columns };
  }

  // Show these cells, with some around them.
  zoomTo(row, column, rows, columns) {
    const { model } = this;
    const span = (at, size, all) => {
      const count = Math.min(size, all);
      const from = Math.min(Math.max(Math.round(at - count / 2), 0), all - count);
      return [from, from + count];
    };
    [this.view.top, this.view.bottom] = span(row + 0.5, rows, model.rows);
    [this.view.left, this.view.right] = span(column + 0.5, columns, model.columns);
    this.redraw();
  }

  zoomBy(factor) {
    const { top, bottom, left, right } = this.view;
    const [row, column] = this.cursor || [(top + bottom) / 2, (left + right) / 2];
    const size = (span) => Math.max(2, Math.round(span * factor));
    this.zoomTo(row, column, size(bottom - top), size(right - left));
  }

  box() {
    const { context, model, width } = this;
    let left = 46;
    if (model.rowLabel) {
      let widest = 0;
      for (let row = this.view.top; row < this.view.bottom && row < this.view.top + 400; row++) {
        widest = Math.max(widest, context.measureText(model.rowLabel(row)).width);
      }
      left = Math.min(widest + 20, width * 0.34, 230);
    }
    return { x: left, y: 26, w: Math.max(width - left - 10, 20), h: this.height - 26 - 34 };
  }

  draw(context) {
    const { model, view } = this;
    const box = this.area = this.box();
    this.unitX = box.w / (view.right - view.left);
    this.unitY = box.h / (view.bottom - view.top);
    context.fillStyle = ink('blank');
    context.fillRect(box.x, box.y, box.w, box.h);
    (model.bands || []).forEach((band) => this.drawBand(context, band));
    this.drawCells(context);
    (model.rules || []).forEach((rule) => this.drawRule(context, rule));
    this.drawRows(context);
    this.drawColumns(context);
    this.drawLegend(context);
    (model.marks || []).forEach((mark) => this.drawMark(context, mark));
    if (this.cursor) this.drawCursor(context);
    if (this.drag) this.drawDrag(context);
  }

  drawCells(context) {
    const { model, view, area, ratio } = this;
    const rows = view.bottom - view.top, columns = view.right - view.left;
    const high = Math.max(1, Math.min(rows, Math.floor(area.h * ratio)));
    const wide = Math.max(1, Math.min(columns, Math.floor(area.w * ratio)));
    const pooled = new Uint8Array(high * wide);
    const place = new Uint32Array(columns);
    for (let c = 0; c < columns; c++) place[c] = Math.floor(c * wide / columns);
    for (let r = 0; r < rows; r++) {
      const to = Math.floor(r * high / rows) * wide;
      const from = (view.top + r) * model.columns + view.left;
      for (let c = 0; c < columns; c++) {
        const level = model.levels[from + c];
        if (level > pooled[to + place[c]]) pooled[to + place[c]] = level;
      }
    }
    this.pooled = (rows / high) * (columns / wide);
    const colors = palette();
    const image = new ImageData(wide, high);
    const pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = colors[pooled[i]];
    const sheet = h('canvas', { width: wide, height: high });
    sheet.getContext('2d').putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(sheet, area.x, area.y, area.w, area.h);
  }

  x(column) { return this.area.x + (column - this.view.left) * this.unitX; }

  y(row) { return this.area.y + (row - this.view.top) * this.unitY; }

  drawRows(context) {
    const { model, view, area } = this;
    const muted = ink('muted');
    if (model.rowScale) {
      for (const [row, text] of model.rowScale(view.top, view.bottom, area.h / 28)) {
        if (row < view.top || row > view.bottom) continue;
        write(context, text, area.x - 6, this.y(row), muted, 'right');
        line(context, area.x - 3, this.y(row), area.x, this.y(row), muted);
      }
      return;
    }
    const every = Math.max(1, Math.ceil(12 / this.unitY));
    for (let row = view.top; row < view.bottom; row++) {
      if ((row - view.top) % every) continue;
      const text = fitted(context, model.rowLabel(row), area.x - 18);
      const here = this.cursor && this.cursor[0] === row;
      write(context, text, area.x - 10, this.y(row + 0.5), here ? ink('text') : muted, 'right');
    }
    if (!model.sections) return;
    for (let row = view.top; row < view.bottom; row++) {
      context.fillStyle = ink(model.sections(row));
      context.fillRect(area.x - 6, this.y(row), 4, this.unitY + 0.5);
    }
  }

  drawColumns(context) {
    const { model, view, area } = this;
    const count = view.right - view.left, unit = model.unit || 'step';
    const every = Math.max(1, Math.ceil(58 / this.unitX));
    const step = [1, 2, 5, 10].map((k) => k * 10 ** Math.floor(Math.log10(every)))
      .find((s) => s >= every) || every;
    for (let column = Math.ceil(view.left / step) * step; column < view.right; column += step) {
      const x = this.x(column + 0.5);
      line(context, x, area.y + area.h, x, area.y + area.h + 4, ink('muted'));
      write(context, model.columnLabel(column), x, area.y + area.h + 11, ink('muted'), 'center');
    }
    const shown = count < model.columns ? `${unit}, ${whole(count)} of ${whole(model.columns)} columns` : unit;
    write(context, shown, area.x + area.w / 2, area.y + area.h + 25, ink('muted'), 'center');
  }

  drawLegend(context) {
    const { legend } = this.model;
    if (!legend) return;
    let x = this.width - 10;
    for (const [name, text] of [...(legend.extra || [])].reverse()) {
      x -= context.measureText(text).width;
      write(context, text, x, 11, ink('muted'));
      x -= 14;
      context.fillStyle = SPECIAL[theme()][name];
      context.fillRect(x, 6, 10, 10);
      context.strokeStyle = ink('edge');
      context.strokeRect(x + 0.5, 6.5, 9, 9);
      x -= 10;
    }
    write(context, legend.high, x, 11, ink('muted'), 'right');
    x -= context.measureText(legend.high).width + 6;
    const wide = Math.max(30, Math.min(110, x - context.measureText(legend.low).width - 20));
    for (let i = 0; i < wide; i++) {
      context.fillStyle = `rgb(${rampColor(i / wide).join(',')})`;
      context.fillRect(x - wide + i, 6, 1.5, 10);
    }
    write(context, legend.low, x - wide - 6, 11, ink('muted'), 'right');
  }

  drawBand(context, { from, to, color }) {
    const { area, view } = this;
    const top = Math.max(from, view.top), bottom = Math.min(to, view.bottom);
    if (bottom <= top) return;
    context.fillStyle = ink(color);
    context.fillRect(area.x, this.y(top), area.w, this.y(bottom) - this.y(top));
  }

  drawRule(context, { at, text, dash }) {
    const { area, view } = this;
    if (at < view.top || at > view.bottom) return;
    context.globalAlpha = 0.6; // a seam, so that it is seen on any colour
    line(context, area.x, this.y(at), area.x + area.w, this.y(at), ink('paper'), 3.4);
    context.globalAlpha = 1;
    line(context, area.x, this.y(at), area.x + area.w, this.y(at), ink('alarm'), 1.4, dash);
    label(context, text, area.x + area.w - 2, this.y(at) - 8 < area.y + 6 ? this.y(at) + 8 : this.y(at) - 8, ink('alarm'));
  }

  drawMark(context, { row, column, text }) {
    const { area, view } = this;
    if (column < view.left || column >= view.right) return;
    const x = this.x(column), color = ink('alarm');
    line(context, x, area.y, x, area.y + area.h, color, 1);
    if (row < view.top || row >= view.bottom) return;
    const w = Math.max(this.unitX, 5), hgt = Math.max(this.unitY, 5);
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.strokeRect(x - 1, this.y(row) - 1, w + 2, hgt + 2);
    const right = x > area.x + area.w / 2;
    const away = right ? x - 14 : x + w + 14;
    const y = Math.max(this.y(row) - 14, area.y + 9);
    line(context, right ? x : x + w, this.y(row), away, y, color, 1.2);
    label(context, text, away, y, color, right ? 'right' : 'left');
  }

  drawCursor(context) {
    const [row, column] = this.cursor;
    const { view } = this;
    if (row < view.top || row >= view.bottom || column < view.left || column >= view.right) return;
    context.strokeStyle = ink(document.activeElement === this.canvas ? 'focus' : 'text');
    context.lineWidth = 2;
    const w = Math.max(this.unitX, 4), hgt = Math.max(this.unitY, 4);
    context.strokeRect(this.x(column), this.y(row), w, hgt);
  }

  drawDrag(context) {
    const [x0, y0, x1, y1] = this.drag;
    context.save();
    context.globalAlpha = 0.25;
    context.fillStyle = ink('focus');
    context.fillRect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0));
    context.restore();
  }

  // The cell at a point of the canvas; of a mark or a pixel that holds several the first.
  cellAt(x, y) {
    const { area, view } = this;
    if (!area) return null;
    const row = Math.floor(view.top + (y - area.y) / this.unitY);
    const column = Math.floor(view.left + (x - area.x) / this.unitX);
    const inside = row >= view.top && row < view.bottom && column >= view.left && column < view.right;
    return inside ? [row, column] : null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener('pointermove', (event) => {
      const [x, y] = this.point(event);
      if (this.drag) {
        this.drag = [this.drag[0], this.drag[1], x, y];
        this.redraw();
        return;
      }
      const cell = this.model && this.cellAt(x, y);
      this.tell(event, cell && this.model.describe(...cell));
    });
    canvas.addEventListener('pointerdown', (event) => {
      const [x, y] = this.point(event);
      if (event.button === 0 && this.model && this.cellAt(x, y)) {
        this.drag = [x, y, x, y];
        canvas.setPointerCapture(event.pointerId);
      }
    });
    canvas.addEventListener('pointerup', () => this.drag && this.dropped());
    canvas.addEventListener('pointercancel', () => { this.drag = null; this.redraw(); });
    canvas.addEventListener('dblclick', () => { this.whole(); this.redraw(); });
  }

  dropped() {
    const [x0, y0, x1, y1] = this.drag;
    this.drag = null;
    if (Math.abs(x1 - x0) < 6 && Math.abs(y1 - y0) < 6) {
      this.pick(this.cellAt(x0, y0));
      return;
    }
    const { area } = this;
    const held = (v, low, size) => Math.min(Math.max(v, low), low + size - 0.01);
    const one = this.cellAt(held(Math.min(x0, x1), area.x, area.w), held(Math.min(y0, y1), area.y, area.h));
    const two = this.cellAt(held(Math.max(x0, x1), area.x, area.w), held(Math.max(y0, y1), area.y, area.h));
    // A flat drag chooses columns alone, a steep one rows alone.
    const v = this.view;
    this.view = {
      top: Math.abs(y1 - y0) < 12 ? v.top : one[0], bottom: Math.abs(y1 - y0) < 12 ? v.bottom : two[0] + 1,
      left: Math.abs(x1 - x0) < 12 ? v.left : one[1], right: Math.abs(x1 - x0) < 12 ? v.right : two[1] + 1,
    };
    this.redraw();
  }

  pick(cell) {
    if (!cell) return;
    this.cursor = cell;
    this.say(this.model.describe(...cell).join(', '));
    this.redraw();
    this.onpick(...cell);
  }

  key(event) {
    const { model } = this;
    if (!model || !model.rows || !model.columns) return false;
    const [row, column] = this.cursor || [this.view.top, this.view.left];
    const moves = {
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -model.columns], End: [0, model.columns],
    };
    if (event.key in moves) this.move(row, column, ...moves[event.key]);
    else if (event.key === 'Enter' || event.key === ' ') this.pick([row, column]);
    else if (event.key === '+' || event.key === '=') this.zoomBy(0.5);
    else if (event.key === '-') this.zoomBy(2);
    else if (event.key === '0' || event.key === 'Escape') { this.whole(); this.redraw(); }
    else return false;
    return true;
  }

  move(row, column, down, right) {
    const { model, view } = this;
    const held = (value, size) => Math.min(Math.max(value, 0), size - 1);
    const to = [held(row + down, model.rows), held(column + right, model.columns)];
    // The first arrow key enters the map where it begins; Home and End go where they say.
    this.cursor = this.cursor || Math.abs(right) > 1 ? to : [row, column];
    const [r, c] = this.cursor;
    if (r < view.top || r >= view.bottom || c < view.left || c >= view.right) {
      this.zoomTo(r, c, view.bottom - view.top, view.right - view.left);
    }
    this.say(model.describe(r, c).join(', '));
    this.redraw();
  }
}
