/* The compiled put: copies an ordinary tensor on the CPU into the ring in one call.

   It writes the bytes that layout.py describes, as the put in Python does. It handles the tensors
   that most observations are made of. For any other tensor, and where something cannot be found out
   here, `put` returns None, and the code in Python decides. The caller holds the queue's lock
   meanwhile: a ring has one producer at a time.

   A tensor's address, shape and strides come from DLPack's table of C functions, which torch
   exports as an attribute of torch.Tensor, so that no header of torch is needed. What that table
   leaves out (the exact dtype, lazy negation, modes) is asked of torch's own methods, through the C
   functions of their descriptors. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if PY_BIG_ENDIAN || UINTPTR_MAX != UINT64_MAX
#error "the ring is little-endian, and its positions are as wide as addresses"
#endif

/* -- the ring, as layout.py has it */

enum { LAYOUT_VERSION = 3, CONTROL_BYTES = 4096, WORD_BYTES = 64, ALIGNMENT = 64 };
enum word { PUBLISHED = 1, WRITTEN = 2, FLOOR = 3, CONSUMED = 4, MARKS = 5 };
enum mark { MARK_CONSUMED = 0, MARK_FREED = 1, MARK_WORDS = 7 };

struct slot {
    int64_t time_ns, step;
    uint64_t pos, nbytes;
    int64_t order;
    double scale;
    uint32_t stream, layout, pass_index, call, flags, count;
    _Atomic uint64_t seq;
};
static_assert(sizeof(struct slot) == 80 && offsetof(struct slot, seq) == 72, "no padding");

/* -- DLPack 1: its structures, as far as they are needed here */

enum { DL_MAJOR = 1, DL_CPU = 1 };

struct dl_tensor {
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides; /* the tensor's own: lent until it changes */
    uint64_t byte_offset;
};

struct dl_exchange {
    struct { uint32_t major, minor; } version;
    void *older;
    void (*unused[3])(void);
    int (*look)(void *tensor, struct dl_tensor *out); /* 0, or -1 with an exception */
};

typedef struct {
    PyObject_HEAD
    Py_buffer ring;
    uint64_t slots, slots_at, payload_at, payload_bytes, room;
    PyObject *held; /* a tuple that keeps alive what is borrowed below */
    PyObject *tensors, *dtypes, *function_modes, *is_tracing, *is_wrapped;
    const struct dl_exchange *exchange;
    PyMethodDef *is_neg;
    PyGetSetDef *dtype;
} Putter;

/* -- which tensors can be copied here */

/* STRANGE: not an ordinary array. DIFFERENT: ordinary, of another dtype or shape than expected. */
enum kind { STRANGE, DIFFERENT, EXPECTED };

static const uintptr_t LOW = (uintptr_t)1 << 40; /* an emptied storage's offset is its address */
static const uint64_t UNLOCKED = (uint64_t)1 << 20; /* a copy as long repays releasing the lock */

/* The truth of a Python object, which is released; `unknown` if it is NULL or raises. */
static int truth(PyObject *answer, int unknown) {
    int said = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (said < 0) PyErr_Clear();
    return said < 0 ? unknown : said;
}

/* The index of an object in a tuple, by identity; -1 if it is not there. */
static Py_ssize_t place_of(PyObject *one, PyObject *tuple) {
    for (Py_ssize_t i = PyTuple_GET_SIZE(tuple) - 1; i >= 0; i--)
        if (PyTuple_GET_ITEM(tuple, i) == one) return i;
    return -1;
}

/* Whether a function mode of the user's program would see the calls made here, or jit.trace is
   running. */
static int is_disturbed(const Putter *self) {
    PyObject *modes = self->function_modes;
    PyObject *count = PyCFunction_GET_FUNCTION(modes)(PyCFunction_GET_SELF(modes), NULL);
    return truth(count, 1) || truth(PyObject_CallNoArgs(self->is_tracing), 1);
}

/* Whether a tensor's storage has bytes. It has none after storage.resize_(0): reading its tensors
   would then end the process. */
static int has_memory(PyObject *x) {
    PyObject *storage = PyObject_CallMethod(x, "untyped_storage", NULL);
    PyObject *size = storage ? PyObject_CallMethod(storage, "nbytes", NULL) : NULL;
    Py_XDECREF(storage);
    return truth(size, 0);
}

/* The bytes of a contiguous array; -1 if it is not contiguous, or larger than `limit` bytes. */
static int64_t bytes_of(const struct dl_tensor *t, uint64_t limit) {
    uint64_t itemsize = t->dtype.bits / 8, length = 1;
    if (t->ndim < 0 || t->dtype.lanes != 1 || !itemsize || t->dtype.bits % 8) return -1;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] <= 0) return t->shape[i] ? -1 : 0;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != (int64_t)length) return -1;
        if (length > limit / itemsize / (uint64_t)t->shape[i]) return -1;
        length *= (uint64_t)t->shape[i];
    }
    return length * itemsize <= limit ? (int64_t)(length * itemsize) : -1;
}

/* Whether `x` is an ordinary array, and of the dtype and shape that `key` encodes. Unless the
   result is STRANGE, `t` and `nbytes` are set. */
static enum kind look_at(const Putter *self, PyObject *x, PyObject *key, struct dl_tensor *t,
                         uint64_t *nbytes) {
    if (place_of((PyObject *)Py_TYPE(x), self->tensors) < 0 || is_disturbed(self)) return STRANGE;
    PyObject *dtype = self->dtype->get(x, self->dtype->closure);
    int64_t place = dtype ? place_of(dtype, self->dtypes) : -1;
    Py_XDECREF(dtype);
    /* A tensor without memory of its own (sparse, nested, wrapped) fails here or has no address. */
    if (place < 0 || truth(self->is_neg->ml_meth(x, NULL), 1) || self->exchange->look(x, t)) {
        PyErr_Clear();
        return STRANGE;
    }
    int64_t size = t->device.type == DL_CPU ? bytes_of(t, self->room) : -1;
    if (size < 0 || (size > 0 && !t->data)) return STRANGE;
    if (size > 0 && (uintptr_t)t->data < LOW && !has_memory(x)) return STRANGE;
    /* An empty tensor may have no address, so this does not tell whether it is a wrapped one. */
    if (size == 0 && truth(PyObject_CallOneArg(self->is_wrapped, x), 1)) return STRANGE;
    *nbytes = (uint64_t)size;
    const char *told = PyBytes_AS_STRING(key);
    size_t dims = (size_t)t->ndim * sizeof *t->shape;
    int same = (size_t)PyBytes_GET_SIZE(key) == sizeof place + dims
        && memcmp(told, &place, sizeof place) == 0
        && (dims == 0 || memcmp(told + sizeof place, t->shape, dims) == 0);
    return same ? EXPECTED : DIFFERENT;
}

/* -- where in the ring a record goes */

/* A word of the ring's control page. */
static _Atomic uint64_t *word_of(const Putter *self, unsigned word) {
    return (_Atomic uint64_t *)((char *)self->ring.buf + (size_t)word * WORD_BYTES);
}

static uint64_t load(const Putter *self, unsigned word) {
    return atomic_load_explicit(word_of(self, word), memory_order_acquire);
}

static uint64_t rounded_up(uint64_t value, uint64_t unit) {
    return value % unit ? value + (unit - value % unit) : value;
}

/* The position below which the payload is free, as the valid mark of the consumer says; 0 if the
   marks change too often to be read. */
static uint64_t freed(const Putter *self) {
    for (int attempt = 0; attempt < 1000; attempt++) {
        uint64_t consumed = load(self, CONSUMED);
        for (unsigned mark = MARKS; mark <= MARKS + MARK_WORDS; mark += MARK_WORDS) {
            if (load(self, mark + MARK_CONSUMED) != consumed) continue;
            uint64_t position = load(self, mark + MARK_FREED);
            if (load(self, CONSUMED) == consumed) return position;
        }
    }
    return 0;
}

/* Sets the slot number and payload position of the next record, of `nbytes`; returns 0 if there is
   no room for it. In an empty ring a record goes to the payload's first byte, whose pages are warm.
   Whatever the control page says, the position modulo the payload's size is inside the payload. */
static int find_room(const Putter *self, uint64_t nbytes, uint64_t *number, uint64_t *pos) {
    uint64_t published = load(self, PUBLISHED), consumed = load(self, CONSUMED);
    uint64_t start = rounded_up(load(self, WRITTEN), ALIGNMENT);
    uint64_t need = rounded_up(nbytes, ALIGNMENT), held_from;
    int empty = published == consumed;
    if (published - consumed >= self->slots) return 0;
    if (empty || start % self->payload_bytes + need > self->payload_bytes)
        start = rounded_up(start, self->payload_bytes);
    if (empty) {
        held_from = start;
        atomic_store_explicit(word_of(self, FLOOR), start, memory_order_relaxed);
    }
    else {
        uint64_t floor = load(self, FLOOR), marked = freed(self);
        held_from = marked > floor ? marked : floor;
    }
    *number = published;
    *pos = start;
    return start + need - held_from <= self->room;
}

static void copy(void *to, const void *from, uint64_t nbytes) {
    if (nbytes >= UNLOCKED) {
        Py_BEGIN_ALLOW_THREADS
        memcpy(to, from, nbytes);
        Py_END_ALLOW_THREADS
    }
    else if (nbytes)
        memcpy(to, from, nbytes);
}

static void publish(const Putter *self, uint64_t number, const struct slot *filled) {
    char *slots = (char *)self->ring.buf + self->slots_at;
    struct slot *slot = (struct slot *)slots + number % self->slots;
    memcpy(slot, filled, offsetof(struct slot, seq));
    atomic_store_explicit(&slot->seq, number + 1, memory_order_release);
    uint64_t written = filled->pos + rounded_up(filled->nbytes, ALIGNMENT);
    atomic_store_explicit(word_of(self, WRITTEN), written, memory_order_relaxed);
    atomic_store_explicit(word_of(self, PUBLISHED), number + 1, memory_order_release);
}

/* -- put */

enum { X, STREAM, LAYOUT, LAYOUT_KEY, AT, ORDER, ARGUMENTS };
enum { STEP, PASS_INDEX, CALL, PLACES };

static uint32_t narrow(PyObject *number) {
    unsigned long value = PyLong_AsUnsignedLong(number);
    if (value > UINT32_MAX && !PyErr_Occurred())
        PyErr_SetString(PyExc_OverflowError, "a slot holds 32 bits of this");
    return (uint32_t)value;
}

PyDoc_STRVAR(put_doc,
    "put(x, stream, layout, layout_key, at, order, /)\n--\n\n"
    "Copy `x` into the ring and publish the record; gives its size in bytes.\n\n"
    "at: a tuple that begins with step, pass and call.\n"
    "-1: there is no room now, and nothing was written. -2: `x` has another dtype or shape than\n"
    "`layout_key` tells. None: `x` is no ordinary array, or this ring can never hold the record.");

static PyObject *put(PyObject *object, PyObject *const *given, Py_ssize_t count) {
    Putter *self = (Putter *)object;
    if (count != ARGUMENTS || !PyBytes_Check(given[LAYOUT_KEY]) || !PyTuple_Check(given[AT])
        || PyTuple_GET_SIZE(given[AT]) < PLACES) {
        PyErr_SetString(PyExc_TypeError, "put(x, stream, layout, layout_key: bytes, "
                                         "at: (step, pass_index, call, ...), order)");
        return NULL;
    }
    PyObject *const *at = &PyTuple_GET_ITEM(given[AT], 0);
    struct slot slot = {
        .step = PyLong_AsLongLong(at[STEP]), .order = PyLong_AsLongLong(given[ORDER]),
        .stream = narrow(given[STREAM]), .layout = narrow(given[LAYOUT]), .scale = 1.0,
        .pass_index = narrow(at[PASS_INDEX]), .call = narrow(at[CALL]), .count = 1,
    };
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return NULL;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    struct dl_tensor t;
    enum kind kind = look_at(self, given[X], given[LAYOUT_KEY], &t, &slot.nbytes);
    if (kind == STRANGE) Py_RETURN_NONE;
    if (kind == DIFFERENT) return PyLong_FromLong(-2);
    /* From here on no Python runs that could put another record in between. */
    uint64_t number;
    if (!find_room(self, slot.nbytes, &number, &slot.pos)) return PyLong_FromLong(-1);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    slot.time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    char *payload = (char *)self->ring.buf + self->payload_at;
    copy(payload + slot.pos % self->payload_bytes, (char *)t.data + t.byte_offset, slot.nbytes);
    publish(self, number, &slot);
    return PyLong_FromUnsignedLongLong(slot.nbytes);
}

/* -- making and freeing a putter */

/* Whether slots and payload, as described, lie inside the ring's memory. */
static int fits(const Putter *self) {
    uint64_t have = (uint64_t)self->ring.len;
    return (uintptr_t)self->ring.buf % ALIGNMENT == 0
        && self->slots_at >= CONTROL_BYTES && self->slots_at % 8 == 0 && self->slots_at <= have
        && self->slots && self->slots <= (have - self->slots_at) / sizeof(struct slot)
        && self->payload_at >= self->slots_at + self->slots * sizeof(struct slot)
        && self->payload_at % ALIGNMENT == 0 && self->payload_at <= have
        && self->payload_bytes && self->payload_bytes <= have - self->payload_at
        && self->payload_bytes % ALIGNMENT == 0 && self->room <= self->payload_bytes;
}

/* Sets what is needed of torch; returns 0 if this torch is not as the code above expects it. */
static int knows(Putter *self, PyObject *exchange, PyObject *is_neg, PyObject *dtype) {
    self->exchange = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
    self->is_neg = ((PyMethodDescrObject *)is_neg)->d_method;
    self->dtype = ((PyGetSetDescrObject *)dtype)->d_getset;
    if (!self->exchange || self->exchange->version.major != DL_MAJOR || !self->exchange->look
        || self->is_neg->ml_flags != METH_NOARGS || !self->dtype->get
        || PyCFunction_GET_FLAGS(self->function_modes) != METH_NOARGS) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->tensors); i++) {
        PyTypeObject *one = (PyTypeObject *)PyTuple_GET_ITEM(self->tensors, i);
        if (!PyType_Check(one) || !PyType_IsSubtype(one, PyDescr_TYPE(is_neg))
            || !PyType_IsSubtype(one, PyDescr_TYPE(dtype))) return 0;
    }
    return 1;
}

/* Sets the fields of a new putter, all of which are zero; returns 0 with an exception set if the
   arguments do not fit. */
static int fill(Putter *self, PyObject *arguments, PyObject *named) {
    static char *names[] = {
        "ring", "slots", "slots_at", "payload_at", "payload_bytes", "room", "exchange", "tensors",
        "dtypes", "is_neg", "dtype", "function_modes", "is_tracing", "is_wrapped", NULL};
    PyObject *exchange, *is_neg, *dtype;
    Py_ssize_t n[5];
    if (!PyArg_ParseTupleAndKeywords(
            arguments, named, "w*$nnnnnO!O!O!O!O!O!OO:Putter", names, &self->ring, &n[0], &n[1],
            &n[2], &n[3], &n[4], &PyCapsule_Type, &exchange, &PyTuple_Type, &self->tensors,
            &PyTuple_Type, &self->dtypes, &PyMethodDescr_Type, &is_neg, &PyGetSetDescr_Type, &dtype,
            &PyCFunction_Type, &self->function_modes, &self->is_tracing, &self->is_wrapped))
        return 0;
    self->held = PyTuple_Pack(8, exchange, self->tensors, self->dtypes, is_neg, dtype,
                              self->function_modes, self->is_tracing, self->is_wrapped);
    if (!self->held) return 0;
    uint64_t *fields[] = {&self->slots, &self->slots_at, &self->payload_at, &self->payload_bytes,
                          &self->room};
    for (int i = 0; i < 5; i++) *fields[i] = (uint64_t)n[i]; /* what is below 0 never fits */
    self->room -= self->room % ALIGNMENT;
    if (!fits(self)) PyErr_SetString(PyExc_ValueError, "slots and payload do not lie in the ring");
    else if (!knows(self, exchange, is_neg, dtype) && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the compiled put does not know this torch");
    return !PyErr_Occurred();
}

static PyObject *new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self && !fill((Putter *)self, arguments, named)) Py_CLEAR(self);
    return self;
}

static void dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyBuffer_Release(&((Putter *)object)->ring);
    Py_XDECREF(((Putter *)object)->held);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, put_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(putter_doc,
    "Puts ordinary arrays into one ring.\n\n"
    "ring: writable memory, borrowed for this object's life. room: the bytes of payload that\n"
    "records may use. dtypes: those that can be stored. A layout key is the place of a dtype among\n"
    "these, then the shape, as int64. The other arguments are torch's own.");

static PyType_Slot type_slots[] = {
    {Py_tp_doc, (void *)putter_doc}, {Py_tp_new, (void *)new}, {Py_tp_dealloc, (void *)dealloc},
    {Py_tp_methods, methods}, {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "anchorlib.recorder._put.Putter", .basicsize = sizeof(Putter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, .slots = type_slots,
};

static int exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &type_spec, NULL);
    int failed = !type || PyModule_AddType(module, (PyTypeObject *)type) < 0
        || PyModule_AddIntConstant(module, "LAYOUT_VERSION", LAYOUT_VERSION) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)exec}, {0, NULL}};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "anchorlib.recorder._put",
    .m_doc = "The compiled put into the ring.", .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__put(void) { return PyModuleDef_Init(&module); }
