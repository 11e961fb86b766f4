// One tensor: exponents over steps with the limits of a format, or as ridge lines.

class TensorCard {
  constructor(app) {
    this.app = app;
    this.format = 0;
    this.view = 'map';
    this.map = new HeatMap({
      label: 'Exponents by step',
      onpick: (row, window) => app.select({ column: windowSteps(app.data.runs[app.run], window)[0] }),
    });
    this.ridges = new Ridges({ label: 'Ridge lines: histograms by step' });
    this.controls = h('div', { class: 'controls' });
    this.sentence = h('p', { class: 'shares', id: 'shares', role: 'status' });
    this.table = h('table', { class: 'formats' });
    this.drawing = h('div', {});
    this.element = card('tensor', 'Exponents by step', this.controls, this.sentence, this.drawing, this.table);
  }

  show() {
    const { app } = this;
    const run = app.data.runs[app.run];
    if (!run || !run.lines.length) return;
    const format = app.data.formats[this.format];
    refill(this.controls,
      app.data.runs.length > 1 && picker('run', app.data.runs.map((one, i) => [String(i), one.name]),
        String(app.run), (value) => app.selectRun(Number(value))),
      picker('tensor', offered(run, app.line), String(app.line),
        (value) => app.select({ line: Number(value) })),
      picker('view', [['map', 'heat map'], ['ridges', 'ridge lines']], this.view,
        (value) => { this.view = value; this.show(); app.address.write(); }),
      csvButton('exponents-by-step', () => exponentRows(run, app.line)));
    this.tell(run, format);
    this.list(run);
    this.draw(run, format);
  }

  tell(run, format) {
    const { app } = this;
    const all = shares(run.bins, app.line, format);
    const text = (one) => `${percent(one.underflow)} underflow, ${percent(one.subnormal)} subnormal, ${percent(one.overflow)} overflow`;
    const parts = [h('strong', {}, `If stored as ${format.name}: ${text(all)}`),
      ` of ${plural(all.count, 'element')} other than zero and NaN, all steps.`];
    if (app.column >= 0) {
      const window = windowOf(run, app.column);
      parts.push(` ${capital(windowSteps(run, window)[2])}: ${text(shares(run.bins, app.line, format, window, window + 1))}.`);
    }
    if (run.bins.width > 1) parts.push(h('strong', {}, ` Each column adds up ${run.bins.width} steps.`));
    refill(this.sentence, parts);
  }

  list(run) {
    const { app } = this;
    const name = freshId('format');
    const row = (format, i) => {
      const own = shares(run.bins, app.line, format);
      const radio = h('input', {
        type: 'radio', name, checked: i === this.format, id: `${name}-${i}`,
        onchange: () => { this.format = i; this.show(); app.address.write(); },
      });
      return h('tr', {}, h('th', { scope: 'row' }, h('label', {}, radio, ` ${format.name}`)),
        h('td', {}, percent(own.underflow)), h('td', {}, percent(own.subnormal)), h('td', {}, percent(own.overflow)));
    };
    refill(this.table,
      h('caption', {}, 'If stored as'),
      h('thead', {}, h('tr', {}, ['format', 'underflow', 'subnormal', 'overflow'].map((text) => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, app.data.formats.map(row)));
  }

  draw(run, format) {
    const { app } = this;
    const title = run.lines[app.line].title;
    if (this.view === 'map') {
      refill(this.drawing, this.map.element);
      this.map.canvas.setAttribute('aria-label', `Exponents of ${title} by step, with the limits of ${format.name}`);
      const model = exponentModel(run, app.line, format);
      model.name = `${app.run} ${app.line} ${format.name}`;
      this.map.show(model, null);
    } else {
      refill(this.drawing, this.ridges.element);
      this.ridges.canvas.setAttribute('aria-label', `Histograms of ${title}, one line a step`);
      this.ridges.show(run, app.line, format);
    }
  }
}

const MOST_OFFERED = 1000;

// The lines to choose from: all, or of very many those around the chosen one.
function offered(run, line) {
  const first = Math.max(0, Math.min(line - MOST_OFFERED / 2, run.lines.length - MOST_OFFERED));
  return run.lines.slice(first, first + MOST_OFFERED).map((one, i) => [String(first + i), one.title]);
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
