// The page: one state (run, line, column, comparison), and every card drawn from it.

const REFRESH_MS = 2000;

class App {
  constructor() {
    this.run = 0;
    this.line = 0;
    this.column = -1;
    this.contrast = -1;
    this.title = h('h1', {}, 'anchor');
    this.about = h('span', { class: 'runs' });
    this.state = h('span', { class: 'state', role: 'status' });
    this.answer = new Answer(this);
    this.overview = new Overview(this);
    this.tensor = new TensorCard(this);
    this.cell = new CellCard(this);
    this.lines = new Lines(this);
    this.tensors = new TensorTable(this);
    this.headers = new HeaderTable(this);
    this.multiples = new Multiples(this);
    this.address = new Address(this);
    document.body.append(
      h('header', {}, this.title, this.about, this.state),
      h('main', {}, this.answer.element, this.multiples.element,
        h('div', { class: 'columns' },
          h('div', { class: 'stack' }, this.overview.element, this.cell.element),
          h('div', { class: 'stack' }, this.tensor.element, this.lines.loss.element, this.lines.figures.element)),
        h('div', { class: 'charts' }, this.lines.gradients.element, this.lines.updates.element, this.lines.growth.element),
        this.tensors.element, this.headers.element),
      tip);
    darkness.addEventListener('change', () => this.show());
  }

  // New data; the selection stays where it was.
  take(data) {
    const before = this.data && this.data.runs[this.run]?.lines[this.line];
    const step = this.data && this.data.runs[this.run]?.columns[this.column];
    this.data = data;
    this.run = Math.min(this.run, Math.max(data.runs.length - 1, 0));
    if (before) {
      const run = data.runs[this.run];
      const same = JSON.stringify(before.key);
      this.line = Math.max(run.lines.findIndex((one) => JSON.stringify(one.key) === same), 0);
      this.column = step === undefined ? -1 : run.columns.findLastIndex((one) => one <= step);
    } else this.begin();
    this.overview.reset();
    this.answer.show();
    this.headers.show();
    this.show();
  }

  // What is shown at first: the first difference, else the first finding, else the first gradient.
  begin() {
    const { runs, comparisons } = this.data;
    this.contrast = comparisons.length ? 0 : -1;
    const first = comparisons[0]?.first;
    const finding = runs[0]?.findings.find((one) => one.line >= 0 && one.level !== 'info');
    if (first && first.line >= 0) [this.line, this.column] = [first.line, first.column];
    else if (finding) [this.line, this.column] = [finding.line, finding.column];
    else this.line = runs[0] ? gradientRows(runs[0])[0] ?? 0 : 0;
    if (this.column < 0 && runs[0]) this.column = lastSeen(runs[0], this.line);
  }

  // Any of run, line, column, contrast; reveal: also bring the cards into sight.
  select({ run = this.run, line = this.line, column = this.column, contrast = this.contrast, reveal = false }) {
    Object.assign(this, { run, line, column, contrast });
    this.show();
    this.address.write();
    if (reveal) this.tensor.element.scrollIntoView({ block: 'nearest' });
  }

  selectRun(number) {
    const same = JSON.stringify(this.data.runs[this.run].lines[this.line]?.key);
    const line = this.data.runs[number].lines.findIndex((one) => JSON.stringify(one.key) === same);
    const step = this.data.runs[this.run].columns[this.column];
    const column = this.column < 0 ? -1 : this.data.runs[number].columns.findLastIndex((one) => one <= step);
    this.select({ run: number, line: Math.max(line, 0), column });
  }

  selectStep(step) {
    this.select({ column: this.data.runs[this.run].columns.findLastIndex((one) => one <= step) });
  }

  show() {
    const { runs } = this.data;
    const held = document.activeElement;
    refill(this.about, runs.map((run, i) => h('span', { class: 'run' },
      h('code', {}, run.name), i === 0 && runs.length > 1 && ' (reference)',
      ` ${runState(run)}, ${plural(run.steps, 'step')}${run.header['steps.ended_by'] ? ` ended by ${run.header['steps.ended_by']}` : ''}, ${plural(run.lines.length, 'tensor')}, ${plural(run.ranks.length, 'rank')}, ${bytesText(run.bytes)}`)));
    this.multiples.show();
    this.overview.show();
    this.tensor.show();
    this.cell.show();
    this.lines.show();
    this.tensors.show();
    // A drawing loses the focus where it moves into a new place.
    if (held !== document.activeElement && held?.isConnected) held.focus({ preventScroll: true });
  }
}

// The last column in which a line has a record; -1.
function lastSeen(run, row) {
  let column = run.columns.length - 1;
  while (column >= 0 && !seen(run, row * run.columns.length + column)) column--;
  return column;
}

function runState(run) {
  if (run.state !== 'open') return run.state;
  return run.live === false ? 'left open' : 'being recorded';
}

// Ask our own server whether anything is newer than what we have.
async function follow(app) {
  for (;;) {
    await new Promise((done) => setTimeout(done, REFRESH_MS));
    if (document.hidden) continue;
    try {
      const { source, tag } = app.data;
      const answer = await fetch(`${source}&have=${encodeURIComponent(tag)}`, { cache: 'no-store' });
      if (answer.status === 200) app.take(await unpack(await answer.text()));
      const fine = answer.status === 200 || answer.status === 204;
      refill(app.state, fine ? 'live' : `not updated: ${(await answer.text()).slice(0, 300)}`);
    } catch {
      refill(app.state, 'not updated: the server does not answer');
    }
  }
}

async function begin() {
  const data = await unpack(document.getElementById('data').textContent);
  const app = new App();
  app.take(data);
  app.address.go();
  document.documentElement.dataset.ready = 'true';
  if (data.source) follow(app);
}

begin().catch((error) => {
  document.body.append(h('p', { role: 'alert', class: 'trouble' }, `This page cannot be drawn: ${error.message}`));
  throw error;
});
