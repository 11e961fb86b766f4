// The document: JSON on the first line, then base64 of a zlib stream with all arrays.

const ARRAYS = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, i4: Int32Array,
  f4: Float32Array, f8: Float64Array,
};

async function unpack(text) {
  const cut = text.indexOf('\n');
  const block = await inflated(text.slice(cut + 1).trim());
  return JSON.parse(text.slice(0, cut), (key, value) => {
    if (value === null || typeof value !== 'object' || !('$' in value)) return value;
    const [type, offset, length] = value.$;
    return new ARRAYS[type](block, offset, length);
  });
}

async function inflated(base64) {
  const characters = atob(base64);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Response(stream).arrayBuffer();
}
