// The selection as the fragment of the page's own address: a link to a cell is a URL.
//
// #run=NAME&tensor=SELECTOR&step=N&against=RUN&show=METRIC&of=RUN&view=ridges&format=e4m3&figure=norm

class Address {
  constructor(app) {
    this.app = app;
    // A page in a notebook's frame has no address of its own.
    this.own = location.protocol !== 'about:';
    window.addEventListener('hashchange', () => { if (this.text() !== this.written) this.go(); });
  }

  text() { return location.hash.slice(1); }

  fragment() {
    const { app } = this;
    const { runs, comparisons } = app.data;
    const run = runs[app.run];
    const found = new URLSearchParams();
    const put = (name, value) => { if (value !== undefined && value !== null && value !== '') found.set(name, value); };
    put('run', run?.name);
    put('tensor', run?.lines[app.line]?.title);
    if (app.column >= 0) put('step', run?.columns[app.column]);
    put('against', comparisons[app.contrast]?.b);
    if (app.overview.choice) {
      const { name, contrast, number } = app.overview.chosen;
      put('show', name);
      put('of', contrast ? contrast.b : runs[number].name);
    }
    put('view', app.tensor.view);
    put('format', app.data.formats[app.tensor.format]?.name);
    put('figure', app.lines.metric);
    return found.toString();
  }

  // After every choice of the reader's: what the address bar holds can be kept, sent, opened again.
  write() {
    if (!this.own) return;
    this.written = this.fragment();
    try {
      history.replaceState(null, '', `#${this.written}`);
    } catch {
      // Some browsers allow no more than so many a minute; the next choice is written again.
    }
  }

  // What a fragment says is looked up among the data: it chooses, and is shown nowhere.
  go() {
    const asked = new URLSearchParams(this.text());
    const { app } = this;
    const { runs, comparisons, formats } = app.data;
    if (![...asked.keys()].length || !runs.length) return;
    const place = (list, name, otherwise) => {
      const at = asked.has(name) ? list.indexOf(asked.get(name)) : -1;
      return at >= 0 ? at : otherwise;
    };
    const number = place(runs.map((one) => one.name), 'run', app.run);
    const run = runs[number];
    const line = place(run.lines.map((one) => one.title), 'tensor', -1);
    const step = Number(asked.get('step') ?? NaN);
    const column = step >= 0 ? run.columns.findLastIndex((one) => one <= step) : number === app.run ? app.column : -1;
    app.tensor.format = place(formats.map((one) => one.name), 'format', app.tensor.format);
    app.tensor.view = asked.get('view') === 'ridges' ? 'ridges' : 'map';
    if (Object.hasOwn(METRICS, asked.get('figure'))) app.lines.metric = asked.get('figure');
    app.overview.choose(asked.get('show'), asked.get('of'));
    app.contrast = place(comparisons.map((one) => one.b), 'against', app.contrast);
    [app.run, app.line, app.column] = [number, line >= 0 ? line : number === app.run ? app.line : 0, column];
    app.show();
    const lost = asked.has('tensor') && line < 0;
    refill(app.state, lost ? 'the link names a tensor that is not here' : '');
  }

  link(text) {
    return this.own && h('a', { href: `#${this.fragment()}`, class: 'link' }, text);
  }
}
