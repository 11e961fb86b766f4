// Curves over steps: the loss, norms of gradients, updates against weights, one tensor's figures.

function scalars(run) {
  return run.lines.map((_, row) => row)
    .filter((row) => run.lines[row].kind === 'value' && ['scalar', '1'].includes(run.lines[row].shape) && !run.lines[row].parameter);
}

// The line of the loss: the one compare took, else a scalar that is called so, else any scalar.
function lossOf(run, name) {
  const rows = scalars(run);
  const named = (test) => rows.find((row) => test(run.lines[row].key[0]));
  return named((one) => one === name) ?? named((one) => one === 'loss') ?? named((one) => /loss/i.test(one)) ?? rows[0] ?? -1;
}

// A figure of one line over the columns that have it; `bad`: steps with NaN or Inf.
function seriesOf(run, row, value) {
  const steps = [], values = [], bad = [];
  for (let c = 0; c < run.columns.length; c++) {
    const i = row * run.columns.length + c;
    if (!seen(run, i)) continue;
    steps.push(run.columns[c]);
    values.push(value(run, row, c, i));
    if (run.figures.nan[i] + run.figures.inf[i] > 0) bad.push(run.columns[c]);
  }
  return { steps, values, bad };
}

function meanOf(run, row, column, i) {
  return finite(run, i) ? run.figures.sum[i] / finite(run, i) : NaN;
}

// The parameters' gradients: `grad`, of those without it `pass_grad`; all gradients if none is known.
function gradientRows(run) {
  const gradients = run.lines.map((one, row) => row).filter((row) => run.lines[row].section === 'backward');
  const own = gradients.filter((row) => run.lines[row].parameter);
  const rows = own.length ? own : gradients;
  const names = new Set(rows.filter((row) => run.lines[row].kind === 'grad').map((row) => run.lines[row].key[0]));
  return rows.filter((row) => run.lines[row].kind === 'grad' || !names.has(run.lines[row].key[0]));
}

// √Σ norm² over these rows, where any of them has a record.
function totalNorm(run, rows, norm = (row, c) => run.figures.l2[row * run.columns.length + c]) {
  const steps = [], values = [], bad = [];
  const { nan, inf } = run.figures;
  for (let c = 0; c < run.columns.length; c++) {
    let sum = 0, any = false, whole = true;
    for (const row of rows) {
      const i = row * run.columns.length + c;
      const size = norm(row, c);
      if (!seen(run, i)) continue;
      if (nan[i] + inf[i] > 0) [any, whole] = [true, false];
      else if (!Number.isNaN(size)) { sum += size * size; any = true; }
    }
    if (!any) continue;
    steps.push(run.columns[c]);
    values.push(whole ? Math.sqrt(sum) : NaN);
    if (!whole) bad.push(run.columns[c]);
  }
  return { steps, values, bad };
}

// The norm of all parameters' gradients before clipping, where it is known; see unclipped.py.
function unclippedNorm(run) {
  const { norms, bad } = run.unclipped;
  const columns = Array.from(run.columns, (_, c) => c).filter((c) => bad[c] || !Number.isNaN(norms[c]));
  return {
    steps: columns.map((c) => run.columns[c]),
    values: columns.map((c) => norms[c]),
    bad: columns.filter((c) => bad[c]).map((c) => run.columns[c]),
  };
}

// How often clipping made the norm smaller, where the norm is known on both sides of it.
const CLIPPED = 0.999;

function clippedText(run) {
  const rows = gradientRows(run).filter((row) => run.lines[row].kind === 'grad');
  if (!run.unclipped || !rows.length) return '';
  const before = unclippedNorm(run), after = totalNorm(run, rows);
  const then = new Map(after.steps.map((step, i) => [step, after.values[i]]));
  const pairs = before.steps.map((step, i) => [before.values[i], then.get(step)])
    .filter(([one, two]) => Number.isFinite(one) && Number.isFinite(two));
  const smaller = pairs.filter(([one, two]) => two < CLIPPED * one).map(([, two]) => two);
  if (!pairs.length) return '';
  if (!smaller.length) return `${run.name}: no step was clipped.`;
  const [low, high] = extent(smaller);
  const to = low >= CLIPPED * high ? `, to ${figure(high, 3)}` : '';
  return `${run.name}: clipped in ${whole(smaller.length)} of ${plural(pairs.length, 'step')}${to}.`;
}

function totalRatio(run, rows) {
  const at = run.columns.length;
  const weight = (row, c) => run.figures.l2[weightOf(run, row) * at + c];
  const both = (read) => (row, c) => (weight(row, c) >= 0 ? read(row, c) : NaN);
  const updates = totalNorm(run, rows, both((row, c) => run.figures.l2[row * at + c]));
  const weights = totalNorm(run, rows, both(weight));
  return { ...updates, values: updates.values.map((v, i) => (weights.values[i] > 0 ? v / weights.values[i] : NaN)) };
}

class LineCard {
  constructor(app, id, title, options = {}) {
    this.app = app;
    this.chart = new Curves({ label: title, onpick: (step) => app.selectStep(step) });
    this.controls = h('div', { class: 'controls' });
    this.about = h('p', { class: 'about' }, options.about || '');
    this.element = card(id, title, this.controls, this.chart.element, this.about);
    this.id = id;
    this.title = title;
  }

  // Hidden where there is nothing to draw.
  draw(model, ...controls) {
    this.element.hidden = !model.series.length;
    if (this.element.hidden) return;
    refill(this.controls, ...controls, legendOf(model.series), csvButton(this.id, () => curveRows(model)));
    this.chart.canvas.setAttribute('aria-label', `${this.title}: ${model.series.map((one) => one.title).join(', ')}`);
    this.chart.show(model);
  }
}

function* curveRows(model) {
  yield ['series', 'step', 'value'];
  for (const one of model.series) {
    for (let i = 0; i < one.steps.length; i++) yield [one.title, one.steps[i], one.values[i]];
  }
}

class Lines {
  constructor(app) {
    this.app = app;
    this.loss = new LineCard(app, 'loss', 'Loss');
    this.gradients = new LineCard(app, 'gradient-norm', 'Gradient norm');
    this.updates = new LineCard(app, 'update-ratio', 'Update-to-weight ratio');
    this.figures = new LineCard(app, 'tensor-figures', 'Selected tensor over steps');
    this.growth = new LineCard(app, 'growth', 'Growth of the differences');
    this.cards = [this.loss, this.gradients, this.updates, this.figures, this.growth];
    this.metric = 'rms';
  }

  show() {
    this.showLoss();
    this.showGradients();
    this.showUpdates();
    this.showFigures();
    this.showGrowth();
  }

  // Up to three runs lie over each other; of more, the first and the one that is compared with it.
  overlaid() {
    const { runs, comparisons } = this.app.data;
    if (runs.length <= 3) return runs.map((_, number) => number);
    return [...new Set([0, comparisons[this.app.contrast]?.run ?? this.app.run])];
  }

  showLoss() {
    const { runs, comparisons } = this.app.data;
    const overlaid = this.overlaid();
    const told = comparisons.find((one) => one.loss)?.loss;
    const names = [...new Set(runs.flatMap((run) => scalars(run).map((row) => run.lines[row].key[0])))];
    const first = runs.length ? lossOf(runs[0], told?.name) : -1;
    if (!names.includes(this.lossName)) this.lossName = first >= 0 ? runs[0].lines[first].key[0] : names[0];
    const series = [];
    runs.forEach((run, number) => {
      for (const row of scalars(run)) {
        if (!overlaid.includes(number) || run.lines[row].key[0] !== this.lossName) continue;
        const phase = run.lines[row].key[3];
        const title = [runs.length > 1 ? run.name : this.lossTitle(), phase === 'train' ? '' : `(${phase})`].join(' ').trim();
        series.push({ title, color: number, dash: number ? [6, 4] : phase === 'train' ? [] : [2, 3], ...seriesOf(run, row, meanOf) });
      }
    });
    const marks = comparisons.filter((one) => overlaid.includes(one.run) && one.loss && one.loss.name === this.lossName && one.loss.first !== null)
      .map((one) => ({ step: one.loss.first, text: this.markText(one, one.loss.first) }));
    this.loss.draw({ series, marks, log: false },
      names.length > 1 && picker('scalar', names.map((name) => [name, shownName(name)]), this.lossName,
        (value) => { this.lossName = value; this.showLoss(); }));
  }

  lossTitle() {
    return shownName(this.lossName);
  }

  showGradients() {
    const series = [];
    let known = true, clipped = false;
    const overlaid = this.overlaid();
    this.app.data.runs.forEach((run, number) => {
      const rows = gradientRows(run);
      if (!rows.length || !overlaid.includes(number)) return;
      known = rows.every((row) => run.lines[row].parameter);
      const style = { color: number, dash: number ? [6, 4] : [] };
      if (run.unclipped) {
        series.push({ title: `${run.name}, ${plural(run.unclipped.tensors, 'tensor')} before clipping`, ...style, ...unclippedNorm(run) });
      }
      const taken = rows.some((row) => run.lines[row].kind === 'grad');
      clipped ||= taken && !run.unclipped;
      if (!taken && run.unclipped) return;
      const after = run.unclipped ? 'as the optimizer took them' : 'together';
      series.push({ title: `${run.name}, ${plural(rows.length, 'tensor')} ${after}`, ...style, dash: run.unclipped ? [2, 3] : style.dash, ...totalNorm(run, rows) });
    });
    const of = known ? 'Of all parameters that were recorded.' : 'Of all gradients that were recorded: which of them are parameters is not known.';
    const told = overlaid.map((number) => clippedText(this.app.data.runs[number])).filter(Boolean).join(' ');
    refill(this.gradients.about, told ? `${told} ${of}` : clipped ? `${of} As the optimizer took them, after any clipping: record '*@pass_grad' as well for the norm before.` : of);
    this.gradients.draw({ series, marks: this.marks(), log: true });
  }

  showUpdates() {
    const { app } = this;
    const series = [];
    app.data.runs.forEach((run, number) => {
      const rows = run.lines.map((_, row) => row).filter((row) => weightOf(run, row) >= 0);
      if (!rows.length || !this.overlaid().includes(number)) return;
      series.push({ title: `${run.name}, ${plural(rows.length, 'parameter')} together`, color: number, dash: number ? [6, 4] : [], ...totalRatio(run, rows) });
      if (number !== app.run) return;
      const own = rows.find((row) => run.lines[row].key[0] === run.lines[app.line].key[0]);
      if (own !== undefined) series.push({ title: run.lines[own].title, color: app.data.runs.length + 1, ...seriesOf(run, own, ratio) });
    });
    refill(this.updates.about, 'Norm of the update over the norm of the weight; about 10⁻³ is usual.');
    this.updates.draw({ series, marks: this.marks(), log: true });
  }

  showFigures() {
    const { app } = this;
    const run = app.data.runs[app.run];
    const metric = METRICS[this.metric];
    const series = [];
    if (run && run.lines[app.line]) {
      series.push({ title: `${run.lines[app.line].title}${app.data.runs.length > 1 ? `, ${run.name}` : ''}`, color: app.run, ...seriesOf(run, app.line, metric.value) });
      app.data.comparisons.forEach((one) => {
        if (app.run !== 0 || one.partners[app.line] < 0 || !this.overlaid().includes(one.run)) return;
        const other = app.data.runs[one.run];
        series.push({ title: `the same in ${other.name}`, color: one.run, dash: [6, 4], ...seriesOf(other, one.partners[app.line], metric.value) });
      });
    }
    const positive = series.some((one) => one.values.some((v) => v > 0));
    this.figures.draw({ series, marks: this.marks(), log: Boolean(metric.log) && positive },
      picker('figure', Object.entries(METRICS).filter(([name]) => name !== 'ratio').map(([name, one]) => [name, one.text]), this.metric,
        (value) => { this.metric = value; app.show(); app.address.write(); }));
  }

  showGrowth() {
    const series = [];
    this.app.data.comparisons.filter((one) => this.overlaid().includes(one.run)).forEach((one) => {
      for (const kind of [...new Set(one.growth.map((g) => g.kind))]) {
        const own = one.growth.filter((g) => g.kind === kind && g.median_error_eps !== null);
        if (!own.length) continue;
        series.push({ title: `${kind}${this.app.data.comparisons.length > 1 ? `, ${one.b}` : ''}`, color: series.length, dash: series.length < 6 ? [] : [3, 3], steps: own.map((g) => g.step), values: own.map((g) => g.median_error_eps) });
      }
    });
    refill(this.growth.about, 'Median relative error of the records that differ, in eps of the coarser dtype, by kind.');
    this.growth.draw({ series, marks: this.marks(), log: true });
  }

  marks() {
    return this.app.data.comparisons.filter((one) => one.first && this.overlaid().includes(one.run))
      .map((one) => ({ step: one.first.step, text: this.markText(one, one.first.step) }));
  }

  markText(contrast, step) {
    const which = this.app.data.comparisons.length > 1 ? ` of ${contrast.b}` : '';
    return `first difference${which}: step ${step}`;
  }
}

// A name as the page shows it, from the title of a line that bears it.
function shownName(name) {
  const shown = JSON.stringify(name).slice(1, -1);
  return shown === name && !/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(name)
    ? name : [...name].map((c) => (/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(c) ? `\\u${c.codePointAt(0).toString(16).padStart(4, '0')}` : c)).join('');
}
