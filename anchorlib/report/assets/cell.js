// What is known of one tensor at one step: its figures, its histogram, its differences.

class CellCard {
  constructor(app) {
    this.app = app;
    this.bars = new Bars({ label: 'Histogram of the selected cell' });
    this.footprint = new FootprintMap();
    this.body = h('div', {});
    this.element = card('cell', 'Selected cell', this.body);
  }

  show() {
    const { app } = this;
    const run = app.data.runs[app.run];
    if (!run || !run.lines[app.line] || app.column < 0 || app.column >= run.columns.length) {
      refill(this.body, h('p', { class: 'about' }, 'Select a cell above: its figures, its histogram and its differences come here.'));
      return;
    }
    const contrast = app.contrast >= 0 ? app.data.comparisons[app.contrast] : null;
    const other = this.partner(contrast);
    const window = windowOf(run, app.column);
    const parts = [{ title: run.name, bins: binsOf(run.bins, app.line, window), color: app.run }];
    if (other) parts.push({ title: other.run.name, bins: binsOf(other.run.bins, other.line, windowOf(other.run, other.column)), color: contrast.run });
    refill(this.body,
      h('p', {}, h('code', {}, run.lines[app.line].title), ` at step ${run.columns[app.column]}`,
        run.width > 1 && ` and the ${run.width - 1} after it`, ' ', app.address.link('link to this cell')),
      h('div', { class: 'pair' },
        contrast && this.difference(contrast, run),
        figuresTable([{ run, line: app.line, column: app.column }, other].filter(Boolean)),
        h('div', { class: 'all' }, parts.length > 1 && legendOf(parts), this.bars.element)));
    this.bars.show(parts);
  }

  // The same tensor and step in the other run.
  partner(contrast) {
    const { app } = this;
    if (!contrast || app.run !== 0) return null;
    const run = app.data.runs[contrast.run];
    const line = contrast.partners[app.line];
    if (line < 0) return null;
    const step = app.data.runs[0].columns[app.column] + contrast.offset;
    const column = run.columns.findLastIndex((one) => one <= step);
    return column < 0 ? null : { run, line, column };
  }

  difference(contrast, run) {
    const { app } = this;
    if (app.run !== 0) return null;
    const cell = app.line * run.columns.length + app.column;
    const state = contrast.grid[cell];
    if (Number.isNaN(state)) return h('p', {}, `${contrast.b} has no record that stands for this one.`);
    if (state === EQUAL) return h('p', {}, `Bit-equal in ${contrast.b}.`);
    const place = placeOf(contrast, cell);
    const at = (name) => contrast.details[name]?.[place];
    const nearby = contrast.nearby.find((one) => one.cell === cell);
    const footprint = contrast.footprints.find((one) => one.cell === cell);
    const worst = at('worst') >= 0;
    const facts = [
      ['records that differ', `${whole(at('differing'))} of ${whole(at('pairs'))}`],
      ['worst of them', `pass ${at('pass_index')}, call ${at('call')}, rank ${at('rank')}`],
      ['relative error', state === UNMEASURED ? 'not measured' : state === NONFINITE ? 'NaN or Inf in one only' : `${figure(state)} eps`],
      ['elements that differ', percent(at('share_differing'))],
      ['largest difference', figure(at('max_abs'))],
      worst && ['there', `element ${at('worst')}: ${figure(at('value_a'), 9)} and ${figure(at('value_b'), 9)}`],
      at('nonfinite') > 0 && ['NaN or Inf in one only', whole(at('nonfinite'))],
      at('zeros') > 0 && ['zero in one only', whole(at('zeros'))],
    ].filter(Boolean);
    return h('div', {},
      h('table', { class: 'facts' }, h('caption', {}, `Difference to ${contrast.b}`),
        h('tbody', {}, facts.map(([name, value]) => h('tr', {}, h('th', { scope: 'row' }, name), h('td', {}, value))))),
      footprint && this.footprint.of(footprint, contrast),
      nearby ? nearbyTable(nearby, contrast) : h('p', { class: 'about' },
        'The values around the worst element are kept for the first divergence, the origins and the worst cells; this is none of them.'));
  }
}

function nearbyTable(nearby, contrast) {
  const row = (a, i) => {
    const place = nearby.start + i;
    const difference = nearby.difference[i];
    return h('tr', { class: place === nearby.worst ? 'worst' : null },
      h('th', { scope: 'row' }, `[${indices(place, nearby.shape).join(', ')}]`),
      h('td', {}, a), h('td', {}, nearby.b[i]),
      h('td', {}, nearby.b[i] === a ? '' : figure(difference)));
  };
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Values around the worst element' },
    h('table', { class: 'nearby' },
      h('caption', {}, 'Values around the worst element'),
      h('thead', {}, h('tr', {}, ['element', contrast.a, contrast.b, 'difference'].map((text) => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, nearby.a.map(row))));
}

function indices(flat, shape) {
  const found = [];
  for (const size of [...shape].reverse()) {
    found.unshift(flat % size);
    flat = Math.floor(flat / size);
  }
  return found;
}

function figuresTable(columns) {
  const figures = {
    records: (run, i) => whole(run.figures.records[i]),
    elements: (run, i) => whole(run.figures.numel[i]),
    zeros: (run, i) => whole(run.figures.zero[i]),
    NaN: (run, i) => whole(run.figures.nan[i]),
    infinities: (run, i) => whole(run.figures.inf[i]),
    subnormal: (run, i) => whole(run.figures.subnormal[i]),
    smallest: (run, i) => figure(run.figures.min[i], 7),
    largest: (run, i) => figure(run.figures.max[i], 7),
    mean: (run, i) => figure(run.figures.sum[i] / finite(run, i), 7),
    'root mean square': (run, i) => figure(run.figures.l2[i] / Math.sqrt(finite(run, i)), 7),
    'L2 norm': (run, i) => figure(run.figures.l2[i], 7),
  };
  const value = (read, { run, line: row, column }) => {
    const i = row * run.columns.length + column;
    return seen(run, i) ? read(run, i) : 'no record';
  };
  return h('table', { class: 'facts figures' },
    h('caption', {}, 'Figures'),
    columns.length > 1 && h('thead', {}, h('tr', {}, h('td', {}), columns.map(({ run }) => h('th', { scope: 'col' }, run.name)))),
    h('tbody', {}, Object.entries(figures).map(([name, read]) => h('tr', {}, h('th', { scope: 'row' }, name),
      columns.map((one) => h('td', {}, value(read, one)))))));
}
