// More than two runs: each beside the first in a small picture of its own, all on one scale.

const MOST_MULTIPLES = 60;
const WHAT = { loss: 'Loss', gradients: 'Norm of all gradients', tensor: 'Selected tensor' };

class Multiples {
  constructor(app) {
    this.app = app;
    this.what = 'loss';
    this.items = [];
    this.controls = h('div', { class: 'controls' });
    this.about = h('p', { class: 'about' });
    this.grid = h('ul', { class: 'multiples' });
    this.element = card('multiples', 'Runs side by side', this.controls, this.about, this.grid);
  }

  show() {
    const { runs } = this.app.data;
    this.element.hidden = runs.length < 3;
    if (this.element.hidden) return;
    const others = runs.map((_, number) => number).slice(1, MOST_MULTIPLES + 1);
    if (this.items.length !== others.length) {
      this.items = others.map(() => this.item());
      refill(this.grid, this.items.map((one) => one.element));
    }
    const models = others.map((number) => this.model(number));
    const series = models.flatMap((one) => one.series);
    const scaled = this.what === 'gradients' || (this.what === 'tensor' && METRICS[this.app.lines.metric].log);
    const log = scaled && series.some((one) => one.values.some((v) => v > 0));
    const range = this.range(series, log);
    refill(this.controls, picker('show', Object.entries(WHAT),
      this.what, (value) => { this.what = value; this.show(); }),
    csvButton('runs-side-by-side', () => curveRows({ series: series.filter((one, i) => series.findIndex((other) => other.title === one.title) === i) })));
    const more = runs.length - 1 - others.length;
    refill(this.about, `Solid: ${runs[0].name}, the reference; dashed: the run. All on one scale.${more > 0 ? ` ${plural(more, 'more run')} are not drawn.` : ''}`);
    others.forEach((number, i) => this.fill(this.items[i], number, { ...models[i], log, range }));
  }

  item() {
    const head = h('div', {}), chart = new Curves({ label: '', height: 120 });
    return { head, chart, element: h('li', {}, head, chart.element) };
  }

  fill({ element, head, chart }, number, model) {
    const { app } = this;
    const run = app.data.runs[number];
    const at = app.data.comparisons.findIndex((one) => one.run === number);
    const contrast = app.data.comparisons[at];
    const chosen = contrast ? app.contrast === at : app.run === number;
    chart.canvas.setAttribute('aria-label', `${WHAT[this.what]} of ${run.name} beside ${app.data.runs[0].name}`);
    element.classList.toggle('chosen', chosen);
    refill(head,
      button(run.name, () => (contrast ? this.app.select({ run: 0, ...this.firstOf(contrast), contrast: at }) : this.app.selectRun(number)),
        { class: 'name', 'aria-pressed': String(chosen) }),
      contrast && h('span', { class: `verdict ${contrast.verdict}` }, ` ${contrast.verdict}`),
      h('p', { class: 'about' }, contrast ? partsText(contrast) : ''));
    chart.show(model);
  }

  firstOf({ first }) {
    return first && first.line >= 0 ? { line: first.line, column: first.column } : {};
  }

  model(number) {
    const { app } = this;
    const contrast = app.data.comparisons.find((one) => one.run === number);
    const series = [0, number].map((at) => ({ title: app.data.runs[at].name, color: at ? number : 0, dash: at ? [6, 4] : [], ...this.series(at, contrast) }))
      .filter((one) => one.steps);
    const marks = contrast?.first ? [{ step: contrast.first.step, text: '' }] : [];
    return { series, marks };
  }

  series(number, contrast) {
    const { app } = this;
    const run = app.data.runs[number];
    if (this.what === 'gradients') {
      const rows = gradientRows(run);
      return run.unclipped ? unclippedNorm(run) : rows.length ? totalNorm(run, rows) : {};
    }
    const row = this.what === 'loss' ? lossOf(run, contrast?.loss?.name) : this.tensorOf(number, contrast);
    return row >= 0 ? seriesOf(run, row, this.what === 'loss' ? meanOf : METRICS[app.lines.metric].value) : {};
  }

  // The line of a run that stands for the selected one, which may be of another run.
  tensorOf(number, contrast) {
    const { app } = this;
    if (number === app.run) return app.line;
    if (app.run === 0 && contrast) return contrast.partners[app.line];
    const same = JSON.stringify(app.data.runs[app.run].lines[app.line]?.key);
    return app.data.runs[number].lines.findIndex((one) => JSON.stringify(one.key) === same);
  }

  range(series, log) {
    const values = series.flatMap((one) => Array.from(one.values)).map((v) => (log ? (v > 0 ? Math.log10(v) : NaN) : v));
    const [low, high] = extent(values);
    return axisEnds(low, high, log);
  }
}

// Where and by which settings a run parts from the first, in a few words.
function partsText(contrast) {
  const where = contrast.first ? `from step ${contrast.first.step} on, ${contrast.first.title} first` : 'no difference';
  const told = contrast.config.filter(([name]) => TRAINING.test(name)).map(([name, , b]) => `${name} = ${b}`);
  return [where, ...told.slice(0, 3)].join('; ');
}
