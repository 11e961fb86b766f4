// Tensor × step, in execution order: differences between two runs, or any figure of one.

class Overview {
  constructor(app) {
    this.app = app;
    this.filter = '';
    this.map = new HeatMap({
      label: 'Tensors by step', onpick: (row, column) => this.picked(row, column),
    });
    this.search = h('input', {
      type: 'search', placeholder: 'part of a name', oninput: () => { this.filter = this.search.value; this.show(); },
    });
    this.controls = h('div', { class: 'controls' });
    this.about = h('p', { class: 'about' });
    this.element = card('overview', 'Tensors by step', this.controls, this.about, this.map.element);
  }

  reset() {
    const { runs, comparisons } = this.app.data;
    const options = [];
    comparisons.forEach((one, i) => {
      for (const [name, metric] of Object.entries(CONTRASTS)) {
        const other = comparisons.length > 1 ? ` (${one.b})` : '';
        options.push([`c:${i}:${name}`, `difference: ${metric.text}${other}`]);
      }
    });
    runs.forEach((run, i) => {
      for (const [name, metric] of Object.entries(METRICS)) {
        if (name === 'ratio' && !weightsOf(run).some((row) => row >= 0)) continue;
        options.push([`r:${i}:${name}`, runs.length > 1 ? `${metric.text} (${run.name})` : metric.text]);
      }
    });
    if (!options.some(([value]) => value === this.choice)) [[this.choice]] = options.length ? options : [['']];
    refill(this.controls,
      picker('show', options, this.choice, (value) => { this.choice = value; this.show(); this.app.address.write(); }),
      h('label', {}, 'tensors ', this.search),
      h('span', { class: 'buttons' },
        button('first difference', () => this.toFirst(), { id: 'to-first', hidden: true }),
        button('+', () => this.map.zoomBy(0.5), { 'aria-label': 'Zoom in' }),
        button('−', () => this.map.zoomBy(2), { 'aria-label': 'Zoom out' }),
        button('all', () => { this.map.whole(); this.map.redraw(); }, { 'aria-label': 'Show all cells' }),
        csvButton('tensors-by-step', () => this.rows())));
  }

  // By the name of a figure and of the run it is of; what is not offered changes nothing.
  choose(name, of) {
    const { runs, comparisons } = this.app.data;
    const at = Object.hasOwn(CONTRASTS, name) ? ['c', comparisons.findIndex((one) => one.b === of)]
      : ['r', runs.findIndex((one) => one.name === of)];
    const list = this.controls.querySelector('select');
    const value = [...at, name].join(':');
    if (!list || ![...list.options].some((one) => one.value === value)) return;
    list.value = this.choice = value;
  }

  get chosen() {
    const [sort, at, name] = this.choice.split(':');
    const { runs, comparisons } = this.app.data;
    const contrast = sort === 'c' ? comparisons[at] : null;
    return {
      contrast, name, number: contrast ? 0 : Number(at), run: runs[contrast ? 0 : at],
      metric: contrast ? CONTRASTS[name] : METRICS[name],
    };
  }

  show() {
    if (!this.choice) return;
    const drawn = [this.app.data, this.choice, this.filter, theme()];
    if (this.drawn && drawn.every((one, i) => one === this.drawn[i])) {
      this.map.cursor = this.cursor();
      this.map.redraw();
      return;
    }
    this.drawn = drawn;
    const { contrast, run, metric, name } = this.chosen;
    const columns = run.columns.length;
    const wanted = this.filter.toLowerCase();
    let lines = run.lines.map((_, row) => row)
      .filter((row) => run.lines[row].title.toLowerCase().includes(wanted));
    let values = contrast ? this.picked_rows(contrastValues(contrast, name), lines, columns)
      : measuredRun(run, metric, lines);
    [lines, values] = withValues(lines, values, columns);
    const colored = contrast ? coloredContrast(values, metric) : coloredRun(run, metric, lines, values);
    this.lines = lines;
    this.values = values;
    this.map.canvas.setAttribute('aria-label',
      `${metric.text} of ${plural(lines.length, 'tensor')} by step, in execution order`);
    this.map.show(this.model(colored), this.cursor());
    this.tellAbout(lines.length);
    const first = document.getElementById('to-first');
    if (first) first.hidden = !(contrast && contrast.first && contrast.first.line >= 0);
  }

  picked_rows(grid, lines, columns) {
    if (lines.length * columns === grid.length) return Float64Array.from(grid);
    const values = new Float64Array(lines.length * columns);
    lines.forEach((row, at) => values.set(grid.subarray(row * columns, (row + 1) * columns), at * columns));
    return values;
  }

  model({ levels, low, high }) {
    const { contrast, run, metric, name } = this.chosen;
    const text = (value) => (metric.share ? percent(value) : figure(metric.log ? 10 ** value : value, 2));
    const rows = this.lines.length;
    return {
      name: `${name} ${this.filter}`, rows, columns: run.columns.length, levels,
      height: Math.round(Math.min(Math.max(rows * 15, 120), 560)) + 60,
      rowLabel: (row) => run.lines[this.lines[row]].title,
      columnLabel: (column) => String(run.columns[column]),
      sections: (row) => run.lines[this.lines[row]].section,
      describe: (row, column) => this.describe(row, column),
      legend: { low: text(low), high: text(high), extra: this.keysOf(levels, contrast) },
      marks: this.marks(),
    };
  }

  keysOf(levels, contrast) {
    const found = new Set(levels);
    return [
      ['equal', contrast ? 'bit-equal' : 'zero', LEVEL.equal],
      ['unknown', 'differs, not measured', LEVEL.unknown],
      ['infinite', 'from zero', LEVEL.infinite],
      ['nonfinite', contrast ? 'NaN or Inf in one' : 'NaN or Inf', LEVEL.nonfinite],
    ].filter(([, , level]) => found.has(level));
  }

  marks() {
    const { contrast } = this.chosen;
    if (!contrast || !contrast.first || contrast.first.line < 0) return [];
    const { first } = contrast;
    return [{ row: this.lines.indexOf(first.line), column: first.column, text: `first: step ${first.step}` }];
  }

  cursor() {
    const { app } = this;
    const row = app.run === this.chosen.number ? this.lines.indexOf(app.line) : -1;
    return row >= 0 && app.column >= 0 ? [row, app.column] : null;
  }

  stepsText(column) {
    const { run } = this.chosen;
    if (run.width === 1) return `step ${run.columns[column]}`;
    const next = run.columns[column + 1];
    return `steps ${run.columns[column]} to ${next === undefined ? 'the last' : next - 1}`;
  }

  describe(row, column) {
    const { contrast, run, metric } = this.chosen;
    const value = this.values[row * run.columns.length + column];
    const head = [run.lines[this.lines[row]].title, this.stepsText(column)];
    if (Number.isNaN(value)) return [...head, contrast ? 'no pair' : 'no record'];
    if (contrast && value < 0) {
      return [...head, { [EQUAL]: 'bit-equal', [UNMEASURED]: 'differs, not measured', [NONFINITE]: 'NaN or Inf in one only' }[value]];
    }
    return [...head, `${metric.text}: ${metric.share ? percent(value) : figure(value)}`];
  }

  tellAbout(count) {
    const { run, contrast } = this.chosen;
    const parts = ['Rows in execution order: ', key('forward'), ' forward, ', key('backward'), ' backward, ', key('update'), ' update. '];
    parts.push('Click a cell; drag to zoom.');
    if (run.width > 1) {
      parts.push(h('strong', {}, ` ${whole(run.steps)} steps in ${whole(run.columns.length)} columns: each column takes ${run.width} steps together (${contrast ? 'the worst pair' : 'added up'}).`));
    }
    const cells = count * run.columns.length;
    parts.push(` ${whole(cells)} cells${cells > 200_000 ? '; a pixel shows the highest of its cells' : ''}.`);
    refill(this.about, parts);
  }

  toFirst() {
    const { contrast, run } = this.chosen;
    const { first } = contrast;
    const row = this.lines.indexOf(first.line);
    if (row < 0) return;
    this.map.zoomTo(row, first.column, 24, Math.min(16, run.columns.length));
    this.map.pick([row, first.column]);
    this.map.canvas.focus();
  }

  picked(row, column) {
    const { number, contrast } = this.chosen;
    this.app.select({ run: number, line: this.lines[row], column, contrast: contrast ? this.app.data.comparisons.indexOf(contrast) : undefined });
  }

  *rows() {
    const { run, metric } = this.chosen;
    yield ['name', 'kind', 'mode', 'phase', 'step', metric.text];
    const columns = run.columns.length;
    for (let at = 0; at < this.lines.length; at++) {
      for (let c = 0; c < columns; c++) {
        const value = this.values[at * columns + c];
        if (Number.isNaN(value)) continue;
        const word = { [EQUAL]: 'equal', [UNMEASURED]: 'differs', [NONFINITE]: 'nonfinite' }[value];
        yield [...run.lines[this.lines[at]].key, run.columns[c], this.chosen.contrast && word ? word : value];
      }
    }
  }
}

function key(section) {
  return h('span', { class: `key ${section}`, 'aria-hidden': 'true' });
}

// Only the lines that have any value.
function withValues(lines, values, columns) {
  const kept = lines.map((_, at) => at).filter((at) => {
    for (let c = at * columns; c < (at + 1) * columns; c++) if (!Number.isNaN(values[c])) return true;
    return false;
  });
  if (kept.length === lines.length) return [lines, values];
  const found = new Float64Array(kept.length * columns);
  kept.forEach((at, to) => found.set(values.subarray(at * columns, (at + 1) * columns), to * columns));
  return [kept.map((at) => lines[at]), found];
}
