// What two runs were told and made of, where that differs: settings, module tree, operations.

const SETTINGS_SHOWN = 12;
const TREE_SHOWN = 12;
const TRAINING = /^(optimizer\d*|user|amp|torch\.backend|torch\.initial_seed|lightning|transformers|accelerate)(\.|$)/;
const CHANGES = {
  added: ['+', (one) => `added${one.names > 1 ? `, with ${plural(one.names, 'name')}` : ''}`],
  removed: ['−', (one) => `removed${one.names > 1 ? `, with ${plural(one.names, 'name')}` : ''}`],
  other: ['≠', (one) => one.facts.map(([what, a, b]) => `${what}: ${a} → ${b}`).join('; ')],
  equal: ['=', (one) => `equal${one.names > 1 ? `, ${plural(one.names, 'name')}` : ''}`],
};

function nodesOf(contrast) {
  return contrast.structure.nodes.map(([path, change, names, facts]) => ({ path, change, names, facts }));
}

// Beside where the runs part: what they were told and made of that may be why.
function changesOf(contrast) {
  const nodes = nodesOf(contrast);
  const changed = nodes.filter((one) => one.change !== 'equal');
  const heading = freshId('changed');
  return h('div', { class: 'changed', role: 'group', 'aria-labelledby': heading },
    h('h3', { id: heading }, 'What changed'),
    settingsTable(contrast),
    changed.length ? changedList(changed) : h('p', { class: 'about' },
      'No name, shape or dtype differs, as far as they were recorded, nor an operation, as autograd saw it at first.'),
    nodes.length > 0 && moduleTree(nodes, contrast.structure.more));
}

// Settings of the training first, then those of the machine and the libraries.
function settingsTable(contrast) {
  const order = (one) => (TRAINING.test(one[0]) ? 0 : 1);
  const rows = [...contrast.config].sort((one, two) => order(one) - order(two));
  if (!rows.length) return h('p', { class: 'about' }, 'No setting differs, as far as the headers tell.');
  const more = rows.length - SETTINGS_SHOWN;
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Settings that differ in ${contrast.b}` },
    h('table', { class: 'facts' },
      h('thead', {}, h('tr', {}, ['setting', contrast.a, contrast.b].map((text) => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, rows.slice(0, SETTINGS_SHOWN).map(([name, a, b]) => h('tr', {}, h('th', { scope: 'row' }, name), h('td', {}, a), h('td', {}, b))))),
    more > 0 && h('p', { class: 'about' }, `${plural(more, 'more setting')}: see what the runs say about themselves, below.`));
}

function changedList(changed) {
  const more = changed.length - TREE_SHOWN;
  return h('ul', { class: 'nodes' },
    changed.slice(0, TREE_SHOWN).map((one) => h('li', { class: one.change }, ...nodeText(one))),
    more > 0 && h('li', {}, `and ${whole(more)} more in the module tree`));
}

function nodeText(one, name = one.path) {
  const [sign, words] = CHANGES[one.change];
  return [h('span', { class: 'sign', 'aria-hidden': 'true' }, sign), h('code', {}, name), ': ', words(one)];
}

function moduleTree(nodes, more) {
  const root = { inner: new Map() };
  for (const one of nodes) {
    let place = root;
    for (const part of one.path.split('.')) {
      if (!place.inner.has(part)) place.inner.set(part, { inner: new Map() });
      place = place.inner.get(part);
    }
    place.node = one;
  }
  return h('details', {}, h('summary', {}, 'Module tree of both runs'), branch(root),
    h('p', { class: 'about' }, `As far as it was recorded.${more ? ` ${plural(more, 'more node')} are not listed.` : ''}`));
}

function branch(place) {
  return h('ul', { class: 'tree' }, [...place.inner].map(([part, one]) => h('li', { class: one.node?.change },
    one.node ? nodeText(one.node, part) : h('code', {}, part), one.inner.size > 0 && branch(one))));
}
