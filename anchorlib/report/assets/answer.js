// The answer on top: verdicts of comparisons, or what deserves attention in a run.

const ALONE_SHOWN = 3;

function* originRows(one) {
  const names = ['title', 'step', 'pass_index', 'call', 'rank', 'phase', 'class', 'error_eps', 'share_differing', 'max_abs', 'max_ulp', 'amongst', 'why'];
  yield [...names, 'ops', 'parents'];
  for (const origin of one.origins) yield [...names.map((name) => origin[name]), origin.ops.join(' '), origin.parents.join(' ')];
}

class Answer {
  constructor(app) {
    this.app = app;
    this.element = h('section', { id: 'answer', 'aria-label': 'Answer' });
  }

  show() {
    const { runs, comparisons, trouble } = this.app.data;
    const found = comparisons.length > 1 ? this.verdicts(comparisons) : comparisons.map((one, i) => this.verdict(one, i));
    if (trouble) found.push(h('p', { class: 'trouble' }, trouble));
    const alone = runs.map((run, number) => this.alone(run, number)).filter(Boolean);
    if (alone.length > ALONE_SHOWN) {
      const count = runs.filter((run) => run.findings.some((one) => one.level !== 'info')).length;
      found.push(h('details', {}, h('summary', {}, `Each run by itself: ${count ? `${plural(count, 'run')} with something to look at` : 'nothing stands out'}`), alone));
    } else found.push(...alone);
    // What a reader has opened or closed stays so when the runs have grown.
    const before = [...this.element.querySelectorAll('details')].map((one) => one.open);
    refill(this.element, h('h2', { class: 'unseen' }, 'Answer'), found);
    const after = [...this.element.querySelectorAll('details')];
    if (after.length === before.length) after.forEach((one, i) => { one.open = before[i]; });
  }

  // What deserves attention in one run.
  alone(run, number) {
    const { runs, comparisons } = this.app.data;
    const only = !comparisons.length && runs.length === 1;
    const list = run.findings.map((one, i) => this.finding(one, number, i === 0 && only));
    if (!list.length) return null;
    if (only) return h('ul', { class: 'findings' }, list);
    const serious = run.findings.filter((one) => one.level !== 'info').length;
    return h('details', { open: !comparisons.length }, h('summary', {}, `${run.name} by itself: `,
      serious ? `${plural(serious, 'thing')} to look at` : 'nothing stands out'), h('ul', {}, list));
  }

  // Of several comparisons a line each; what lies behind a line opens.
  verdicts(comparisons) {
    return comparisons.map((one, i) => h('details', { open: i === 0 },
      h('summary', { class: `answer ${one.verdict}` }, h('span', { class: 'sentence' },
        h('span', { class: `verdict ${one.verdict}` }, one.verdict), ` ${one.b}: ${partsText(one)}`)),
      this.verdict(one, i)));
  }

  finding(one, number, first) {
    const text = first ? h('strong', {}, one.text) : one.text;
    const go = one.line >= 0 && button('show', () => this.app.select({ run: number, line: one.line, column: one.column >= 0 ? one.column : undefined, reveal: true }),
      { 'aria-label': `Show: ${one.text}` });
    return h('li', { class: one.level }, text, ' ', go);
  }

  verdict(one, i) {
    const told = Object.fromEntries(one.sections.map((section) => [section.key, section]));
    const { first } = one;
    const head = h('p', { class: 'sentence' }, h('span', { class: `verdict ${one.verdict}` }, one.verdict), ' ', h('strong', {}, told.verdict.head));
    const [matched, alone, ranks] = told.verdict.entries.map((entry) => entry.text);
    const facts = `${matched} ${alone}${ranks ? `; ${ranks}` : ''}`;
    const go = first && first.line >= 0 && button(`show the first difference: ${told.first.entries[0].where}, ${told.first.entries[0].name}`,
      () => this.app.select({ run: 0, line: first.line, column: first.column, contrast: i, reveal: true }));
    const where = h('div', { class: 'where' },
      h('p', { class: 'about' }, `${one.a} (A, the reference) against ${one.b} (B): ${facts}.`), go,
      told.note && h('ul', { class: 'notes' }, told.note.entries.map((note) => h('li', {}, note.text)), more(told.note)),
      told.origins && this.origins(one, told.origins, i),
      told.reference && nearerOf(told.reference),
      told.ops && operations(one, told.ops));
    return h('div', { class: `answer ${one.verdict}` }, head,
      h('div', { class: 'beside' }, where, changesOf(one)),
      vicinitiesOf(one),
      one.renamed.length > 0 && h('details', {}, h('summary', {}, `${plural(one.renamed.length, 'tensor')} under another name`),
        h('ul', {}, one.renamed.map(([a, b, how]) => h('li', {}, h('code', {}, a), ' is ', h('code', {}, b), ` (${how})`)))));
  }

  origins(one, section, i) {
    const place = (entry) => {
      const cell = entry.line * this.app.data.runs[0].columns.length + entry.column;
      const found = entry.line >= 0 && !entry.far.includes(' in ') && one.footprints.find((some) => some.cell === cell);
      return found && `differs in ${footprintText(found)}`;
    };
    const row = (entry) => [h('tr', {},
      h('th', { scope: 'row' }, entry.line >= 0
        ? button(entry.name, () => this.app.select({ run: 0, line: entry.line, column: entry.column, contrast: i, reveal: true }), { class: 'name' })
        : entry.name),
      h('td', {}, entry.where), h('td', {}, entry.kind), h('td', {}, entry.far || '–')),
    h('tr', { class: 'why' }, h('td', { colspan: 4 }, [entry.made, entry.text, place(entry)].filter(Boolean).join('; ') || '–'))];
    return h('details', { open: section.all <= 3 }, h('summary', {}, plural(section.all, 'origin'), `: ${section.head}`),
      h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Origins of ${one.b}` }, h('table', { class: 'origins' },
        h('thead', {}, h('tr', {}, ['tensor', 'where', 'class', 'how far apart'].map((text) => h('th', { scope: 'col' }, text)))),
        h('tbody', {}, section.entries.flatMap(row)))),
      section.all > section.entries.length && h('p', { class: 'about' }, `The first ${section.entries.length} in order of execution are listed.`),
      section.all > 3 && csvButton('origins', () => originRows(one)));
  }
}

// Which of A and B is nearer to a third run.
function nearerOf(section) {
  const cells = (tag, row) => h('tr', {}, row.map((text) => h(tag, {}, text)));
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Nearer to the reference' },
    h('p', { class: 'about' }, `A third run, ${section.head}`),
    section.rows.length > 0 && h('table', { class: 'origins' }, h('thead', {}, cells('th', section.heads)),
      h('tbody', {}, section.rows.map((row) => cells('td', row)))));
}

// Operations that one run alone ran, or both with other arguments.
function operations(one, section) {
  const row = (entry) => [h('tr', {}, h('th', { scope: 'row' }, entry.name), h('td', {}, entry.where),
    ...entry.sides.map((side) => h('td', {}, h('code', {}, side)))),
  h('tr', { class: 'why' }, h('td', { colspan: 4 }, entry.text || '–'))];
  if (!section.entries.length) return h('p', { class: 'about' }, `Operations: ${section.head}`);
  return h('details', { open: section.all <= 3 }, h('summary', {}, `Operations: ${section.head}`),
    h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Operations of ${one.b}` }, h('table', { class: 'origins' },
      h('thead', {}, h('tr', {}, ['module', 'stage', 'A', 'B'].map((text) => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, section.entries.flatMap(row)))),
    section.all > section.entries.length && h('p', { class: 'about' }, `The first ${section.entries.length} are listed.`));
}

function more(section) {
  const left = section.all - section.entries.length;
  return left > 0 && h('li', {}, `and ${whole(left)} more`);
}
