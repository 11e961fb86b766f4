// What netron's own readers make of files: node netron_reads.mjs FOLDER_OF_NETRON FILE...
// A line of JSON for each file: its format, nodes, and edges as pairs of places among the nodes.
import { readFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const folder = resolve(process.argv[2]);
const part = (name) => import(pathToFileURL(join(folder, name.endsWith('.js') ? name : `${name}.js`)));

// The readers live in a browser's page; of that they ask for no more than this.
const element = () => ({ style: {}, setAttribute() {} });
globalThis.window = { exports: {}, addEventListener() {}, removeEventListener() {} };
globalThis.document = { body: {}, createElement: element, createElementNS: element, documentElement: element(), getElementById: element };

const base = await part('base.js');
const view = await part('view.js');
const asset = (file, encoding) => readFile(join(folder, file), encoding ?? 'utf-8');
const fail = (error) => { throw error; };
const host = {
    version: '0', type: 'Test', window, document, asset, require: part, import: part,
    environment: () => null, event() {}, message() {}, error() {}, exception: fail, get: () => null, set() {},
    request: async (file, encoding) => encoding ? asset(file, encoding) : new base.BinaryStream(await readFile(join(folder, file))),
};

async function read(file) {
    const name = basename(file);
    const stream = new base.BinaryStream(new Uint8Array(await readFile(file)));
    const context = {
        identifier: name, name, stream, host, asset, require: part, request: host.request, container: null,
        entries: new Map(), tags: new Map(), content: new Map(), error: fail,
    };
    const model = await new view.ModelFactoryService(host).open(context);
    const { nodes } = (model.modules ?? model.graphs)[0];
    const names = (side) => side.flatMap((argument) => argument.value ?? []).map((value) => value?.name);
    const makers = new Map(nodes.flatMap((node, at) => names(node.outputs).map((value) => [value, at])));
    const edges = nodes.flatMap((node, at) => names(node.inputs).filter((value) => makers.has(value)).map((value) => [makers.get(value), at]));
    return { format: model.format, nodes: nodes.map((node) => [node.name, node.type.name]), edges };
}

for (const file of process.argv.slice(3)) {
    console.log(JSON.stringify(await read(file)));
}
