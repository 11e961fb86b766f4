// Elements are made from text nodes and attributes: no string of a run is ever parsed as HTML.

function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

// The same for drawings.
function s(tag, attributes = {}, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat());
  return made;
}

// New children in the place of the old; whoever had the focus there has it again.
const FOCUSABLE = 'button, select, input, summary, canvas, [tabindex]';

function refill(element, ...children) {
  const held = element.contains(document.activeElement)
    ? [...element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) : -1;
  element.replaceChildren(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
  if (held >= 0) element.querySelectorAll(FOCUSABLE)[held]?.focus({ preventScroll: true });
  return element;
}

let made = 0;
function freshId(stem) {
  return `${stem}-${++made}`;
}

function card(id, title, ...children) {
  const heading = h('h2', { id: `${id}-title` }, title);
  return h('section', { id, 'aria-labelledby': heading.id }, heading, ...children);
}

function picker(label, options, chosen, onpick) {
  const list = h('select', { 'aria-label': label, onchange: () => onpick(list.value) }, options.map(([value, text]) =>
    h('option', { value, selected: value === chosen }, text)));
  return h('label', {}, `${label} `, list);
}

function button(text, onclick, attributes = {}) {
  return h('button', { type: 'button', onclick, ...attributes }, text);
}

// A cell that a spreadsheet would take for a formula is text again behind an apostrophe.
function csvCell(value) {
  const text = value === null || value === undefined || Number.isNaN(value) ? '' : String(value);
  const safe = typeof value === 'string' && /^'*[=+\-@\t\r\n＝＋－＠]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvButton(name, rows) {
  return button('CSV', () => {
    const text = Array.from(rows(), (row) => row.map(csvCell).join(',')).join('\r\n');
    const address = URL.createObjectURL(new Blob([text, '\r\n'], { type: 'text/csv' }));
    h('a', { href: address, download: `${name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }, { class: 'csv', title: 'Save what is shown as CSV', 'aria-label': `Save ${name} as CSV` });
}
