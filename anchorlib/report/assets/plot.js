// What every drawing shares: a canvas as sharp as the screen, a tip, a live line, keys.

const plots = new Set();
const tip = h('div', { class: 'tip', hidden: true, 'aria-hidden': 'true' });

darkness.addEventListener('change', () => plots.forEach((plot) => plot.redraw()));
const resized = new ResizeObserver((entries) => {
  const hosts = new Set(entries.map((entry) => entry.target));
  plots.forEach((plot) => hosts.has(plot.frame) && plot.fit());
});

class Plot {
  // label: what it is; role: its role in words; keys: what the keyboard does, in words.
  constructor({ label, role, keys, height }) {
    const help = h('span', { id: freshId('keys'), class: 'aside' }, keys || '');
    this.canvas = h('canvas', {
      tabindex: 0, role: 'application', 'aria-roledescription': role, 'aria-label': label,
      'aria-describedby': help.id,
    });
    this.now = h('p', { class: 'now', role: 'status', 'aria-live': 'polite' });
    this.frame = h('div', { class: 'plot' }, this.canvas);
    this.element = h('div', {}, this.frame, help, this.now);
    this.context = this.canvas.getContext('2d');
    this.height = height;
    this.width = 0;
    plots.add(this);
    resized.observe(this.frame);
    this.canvas.addEventListener('keydown', (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.key(event)) event.preventDefault();
    });
    this.canvas.addEventListener('pointerleave', () => { tip.hidden = true; });
    this.canvas.addEventListener('blur', () => this.redraw());
    this.canvas.addEventListener('focus', () => this.redraw());
  }

  key() { return false; }

  fit() {
    if (this.frame.clientWidth !== this.width) this.redraw();
  }

  redraw() {
    this.width = this.frame.clientWidth;
    if (!this.width || !this.ready()) return;
    const ratio = window.devicePixelRatio || 1;
    this.ratio = ratio;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.font = '11px system-ui, sans-serif';
    this.draw(this.context);
  }

  ready() { return false; }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  tell(event, lines) {
    tip.hidden = !lines;
    if (!lines) return;
    refill(tip, lines.map((line) => h('div', {}, line)));
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, room))}px`;
    const below = event.clientY + 16;
    const above = event.clientY - tip.offsetHeight - 10;
    tip.style.top = `${below + tip.offsetHeight < window.innerHeight ? below : above}px`;
  }

  say(text) {
    if (this.now.textContent !== text) this.now.textContent = text;
  }
}

// Where an arrow key leads in a row of places whose last is `last`; undefined for any other key.
function stepped(key, now, last) {
  return {
    ArrowRight: Math.min((now ?? -1) + 1, last), ArrowLeft: Math.max((now ?? 0) - 1, 0), Home: 0, End: last,
  }[key];
}

// `text` cut in its middle so that it is no wider than `room`.
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const keep = (low + high + 1) >> 1;
    const short = cutTo(text, keep);
    if (context.measureText(short).width <= room) low = keep; else high = keep - 1;
  }
  return cutTo(text, low);
}

function cutTo(text, keep) {
  const head = Math.floor(keep * 0.4);
  return `${text.slice(0, head)}…${text.slice(text.length - (keep - head))}`;
}

function line(context, x0, y0, x1, y1, color, width = 1, dash = []) {
  context.save();
  context.strokeStyle = color;
  context.lineWidth = width;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  context.restore();
}

function write(context, text, x, y, color, align = 'left', baseline = 'middle') {
  context.fillStyle = color;
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillText(text, x, y);
}

// Text on a plate, so that it can be read over anything.
function label(context, text, x, y, color, align = 'right') {
  const width = context.measureText(text).width + 6;
  const left = align === 'right' ? x - width : x;
  context.save();
  context.globalAlpha = 0.85;
  context.fillStyle = ink('paper');
  context.fillRect(left, y - 7, width, 14);
  context.restore();
  write(context, text, left + 3, y, color);
}
