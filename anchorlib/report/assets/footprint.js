// Where in the tensor an origin differs: a sentence for each axis, and a picture of the difference.

function footprintText(footprint) {
  return footprint.axes.length ? footprint.axes.join('; ') : 'its only element';
}

class FootprintMap {
  constructor() {
    this.map = new HeatMap({ label: 'Where in the tensor the runs differ' });
    this.said = h('p', {});
    this.element = h('div', { class: 'footprint' }, h('h3', {}, 'Where in the tensor'), this.said, this.map.element);
  }

  of(footprint, contrast) {
    refill(this.said, footprintText(footprint));
    this.map.canvas.setAttribute('aria-label', `Where in the tensor ${contrast.a} and ${contrast.b} differ: ${footprintText(footprint)}`);
    this.map.element.hidden = footprint.rows * footprint.columns < 2;
    this.map.show(this.model(footprint));
    return this.element;
  }

  model(footprint) {
    const { rows, columns, picture, shape } = footprint;
    const { levels, low, high } = coloredContrast(picture, { log: true });
    const places = (at, count, size) => {
      const from = Math.floor(at * size / count), to = Math.floor((at + 1) * size / count) - 1;
      return to > from ? `${from}–${to}` : String(from);
    };
    const text = (value) => figure(10 ** value, 2);
    const found = new Set(levels);
    return {
      name: `footprint ${footprint.cell}`, rows, columns, levels, unit: 'column',
      height: Math.min(Math.max(rows * 4, 60), 200) + 60,
      rowLabel: (row) => places(row, rows, shape[0]),
      columnLabel: (column) => places(column, columns, shape[1]),
      describe: (row, column) => {
        const value = picture[row * columns + column];
        const words = { [EQUAL]: 'bit-equal', [NONFINITE]: 'NaN or Inf in one only' }[value];
        return [`row ${places(row, rows, shape[0])}`, `column ${places(column, columns, shape[1])}`,
          words || `largest difference: ${figure(value)}`];
      },
      legend: {
        low: text(low), high: text(high),
        extra: [['equal', 'bit-equal', LEVEL.equal], ['nonfinite', 'NaN or Inf in one', LEVEL.nonfinite]]
          .filter(([, , level]) => found.has(level)),
      },
    };
  }
}
