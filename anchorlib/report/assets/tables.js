// The tensors of a run with what is known of each, and what the runs say about themselves.

const ROWS_SHOWN = 400;

class TensorTable {
  constructor(app) {
    this.app = app;
    this.sort = null;
    this.down = false;
    this.search = h('input', { type: 'search', placeholder: 'name, kind, dtype, shape', oninput: () => this.fill() });
    this.count = h('span', { class: 'about', role: 'status' });
    this.head = h('tr', {});
    this.rows = h('tbody', {});
    this.runs = h('span', {});
    this.element = card('tensors', 'Tensors',
      h('div', { class: 'controls' }, this.runs, h('label', {}, 'search ', this.search), this.count, csvButton('tensors', () => this.csv())),
      h('div', { class: 'scroll tall', tabindex: 0, role: 'region', 'aria-label': 'Table of tensors' },
        h('table', { class: 'tensors' }, h('thead', {}, this.head), this.rows)));
  }

  columns(run) {
    const sum = (name, row) => {
      let total = 0;
      const at = run.columns.length;
      for (let i = row * at; i < (row + 1) * at; i++) total += run.figures[name][i] || 0;
      return total;
    };
    const contrast = this.app.run === 0 ? this.app.data.comparisons[Math.max(this.app.contrast, 0)] : null;
    return [
      ['tensor', (row) => row, (row) => run.lines[row].title],
      ['dtype', (row) => run.lines[row].dtype],
      ['shape', (row) => run.lines[row].shape],
      ['records', (row) => run.lines[row].records, null, true],
      ['steps', (row) => run.lines[row].first, (row) => `${run.lines[row].first} … ${run.lines[row].last}`, true],
      ['zeros', (row) => sum('zero', row) / sum('numel', row), (row, v) => percent(v), true],
      ['NaN, Inf', (row) => sum('nan', row) + sum('inf', row), (row, v) => whole(v), true],
      ['gaps', (row) => run.lines[row].gaps, (row, v) => whole(v), true],
      ['stored', (row) => run.lines[row].bytes, (row, v) => bytesText(v), true],
      contrast && [`first differs`, (row) => firstDifference(contrast, run, row), (row, v) => (v < Infinity ? `step ${v}` : 'never'), true],
      contrast && [`worst error, eps`, (row) => worstError(contrast, run, row), (row, v) => (v < 0 ? '–' : figure(v, 3)), true],
    ].filter(Boolean).map(([name, value, text, right]) => ({ name, value, text: text || ((row, v) => String(v)), right }));
  }

  show() {
    const run = this.app.data.runs[this.app.run];
    refill(this.runs, this.app.data.runs.length > 1 && picker('run',
      this.app.data.runs.map((one, i) => [String(i), one.name]), String(this.app.run), (value) => this.app.selectRun(Number(value))));
    if (run) this.fill();
  }

  found(run, columns) {
    const wanted = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = run.lines.map((_, row) => row).filter((row) => {
      const one = run.lines[row];
      const text = `${one.title} ${one.kind} ${one.dtype} ${one.shape} ${one.section}`.toLowerCase();
      return wanted.every((word) => text.includes(word));
    });
    const sorted = columns.find((column) => column.name === this.sort);
    if (!sorted) return rows;
    const keys = new Map(rows.map((row) => [row, sorted.value(row)]));
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return rows.sort((a, b) => order(keys.get(a), keys.get(b)) * (this.down ? -1 : 1));
  }

  fill() {
    const run = this.app.data.runs[this.app.run];
    const columns = this.columns(run);
    refill(this.head, columns.map((column) => {
      const state = column.name !== this.sort ? 'none' : this.down ? 'descending' : 'ascending';
      const arrow = { none: '', ascending: ' ▲', descending: ' ▼' }[state];
      return h('th', { scope: 'col', 'aria-sort': state, class: column.right ? 'right' : null }, button(column.name + arrow, () => this.sortBy(column.name)));
    }));
    const rows = this.found(run, columns);
    this.shown = { run, columns, rows };
    const shown = rows.slice(0, ROWS_SHOWN);
    const more = rows.length - shown.length;
    refill(this.count, `${whole(rows.length)} of ${whole(run.lines.length)}${more ? `; the first ${ROWS_SHOWN} are listed, search for the others` : ''}`);
    refill(this.rows, shown.map((row) => this.row(run, columns, row)));
  }

  row(run, columns, row) {
    const cells = columns.slice(1).map((column) =>
      h('td', { class: column.right ? 'right' : null }, column.text(row, column.value(row))));
    const name = button(run.lines[row].title, () => this.app.select({ line: row, reveal: true }), { class: 'name' });
    return h('tr', { 'aria-selected': row === this.app.line ? 'true' : null }, h('th', { scope: 'row' }, key(run.lines[row].section), name), cells);
  }

  sortBy(name) {
    this.down = this.sort === name && !this.down;
    this.sort = name;
    this.fill();
    [...this.head.querySelectorAll('button')].find((one) => one.textContent.startsWith(name)).focus();
  }

  *csv() {
    const { run, columns, rows } = this.shown;
    yield ['name', 'kind', 'mode', 'phase', ...columns.slice(1).map((column) => column.name)];
    for (const row of rows) yield [...run.lines[row].key, ...columns.slice(1).map((column) => column.value(row))];
  }
}

function firstDifference(contrast, run, row) {
  const at = run.columns.length;
  for (let c = 0; c < at; c++) {
    const v = contrast.grid[row * at + c];
    if (v >= 0 || v === UNMEASURED || v === NONFINITE) return run.columns[c];
  }
  return Infinity;
}

function worstError(contrast, run, row) {
  let worst = -1;
  const at = run.columns.length;
  for (let i = row * at; i < (row + 1) * at; i++) if (contrast.grid[i] > worst) worst = contrast.grid[i];
  return worst;
}

class HeaderTable {
  constructor(app) {
    this.app = app;
    this.equal = false;
    this.body = h('div', {});
    this.element = card('headers', 'What the runs say about themselves', this.body);
  }

  lines() {
    const { runs } = this.app.data;
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.header)))].sort();
    return names.map((name) => {
      const values = runs.map((run) => run.header[name]);
      return { name, values, differs: new Set(values).size > 1 };
    });
  }

  show() {
    const { runs } = this.app.data;
    const lines = this.lines();
    const shown = lines.filter((one) => runs.length === 1 || one.differs || this.equal);
    const toggle = h('label', {}, h('input', {
      type: 'checkbox', checked: this.equal, onchange: (event) => { this.equal = event.target.checked; this.show(); },
    }), ` also the ${lines.filter((one) => !one.differs).length} that are equal`);
    refill(this.body,
      h('div', { class: 'controls' }, runs.length > 1 && toggle, csvButton('headers', () => this.csv(shown))),
      shown.length ? h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Headers' }, h('table', { class: 'facts' },
        h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'setting'), runs.map((run) => h('th', { scope: 'col' }, run.name)))),
        h('tbody', {}, shown.map((one) => h('tr', { class: one.differs ? 'differs' : null }, h('th', { scope: 'row' }, one.name),
          one.values.map((value) => h('td', {}, value === undefined ? '–' : value)))))))
        : h('p', { class: 'about' }, 'Nothing differs.'));
  }

  *csv(shown) {
    yield ['setting', ...this.app.data.runs.map((run) => run.name)];
    for (const one of shown) yield [one.name, ...one.values];
  }
}
