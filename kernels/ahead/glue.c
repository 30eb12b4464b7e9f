/* Calls kernels that were compiled ahead, from any CPython of 3.11 or newer.

   A kernel is a builtin function bound to its entries, one for each list of argument types. A call takes the first entry
   whose types fit, writes the arguments into an array of 64-bit numbers, and makes Python objects of what comes back.

   Letters of types, as `lower.py` writes them:
     ? b B h H i I q Q f d   a number, as in Python's module `struct`
     A<number><axes><layout> an array; layout C, F or A
     y                       bytes
     n                       None
     o                       an argument that was left out
     (...)                   a tuple
     T<class>(...)           a named tuple that is returned; the class is the number of '0', '1', ...
   An array takes 5 + 2 * axes numbers: what counts its references, its object, how many elements, their size, the data,
   then the shape and the strides. Bytes are passed as an array of one axis. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tables.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define MOST_SLOTS 1024
#define MOST_ITEMS 64 /* of a tuple that is returned */

/* -- memory that kernels ask for --------------------------------------------------------------------------------------
   Kernels count references to arrays that they make. The names and the order of the fields are those that numba's code
   expects. */
typedef struct {
    _Atomic size_t references;
    void (*destroy)(void *, size_t, void *);
    void *destroy_with;
    void *data;
    size_t size;
    void *allocator;
} Memory;

HIDDEN void NRT_MemInfo_call_dtor(Memory *memory) {
    if (memory->destroy) memory->destroy(memory->data, memory->size, memory->destroy_with);
    free(memory);
}

static void release(Memory *memory) {
    if (memory && atomic_fetch_sub(&memory->references, 1) == 1) NRT_MemInfo_call_dtor(memory);
}

/* the data lies behind the counter, in one piece of memory */
HIDDEN void *NRT_MemInfo_alloc_aligned(size_t size, unsigned align) {
    if (size > SIZE_MAX - sizeof(Memory) - align) return NULL;
    Memory *memory = malloc(sizeof(Memory) + align + size);
    if (!memory) return NULL;
    uintptr_t first = (uintptr_t)(memory + 1);
    *memory = (Memory){.references = 1, .data = (void *)((first + align - 1) / align * align), .size = size};
    return memory;
}
HIDDEN void *NRT_MemInfo_alloc_safe_aligned(size_t size, unsigned align) {
    return NRT_MemInfo_alloc_aligned(size, align);
}
HIDDEN void *NRT_MemInfo_alloc(size_t size) { return NRT_MemInfo_alloc_aligned(size, 16); }
HIDDEN void *NRT_MemInfo_alloc_safe(size_t size) { return NRT_MemInfo_alloc_aligned(size, 16); }
HIDDEN void *NRT_Allocate(size_t size) { return malloc(size); }
HIDDEN void NRT_Free(void *data) { free(data); }

/* lists, whose data moves when they grow, lie apart */
static void destroy_apart(void *data, size_t size, void *destroy) {
    if (destroy) ((void (*)(void *))destroy)(data);
    free(data);
}
HIDDEN void *NRT_MemInfo_new_varsize_dtor(size_t size, void *destroy) {
    Memory *memory = malloc(sizeof(Memory));
    void *data = malloc(size ? size : 1);
    if (!memory || !data) {
        free(memory);
        free(data);
        return NULL;
    }
    *memory = (Memory){.references = 1, .destroy = destroy_apart, .destroy_with = destroy, .data = data, .size = size};
    return memory;
}
HIDDEN void *NRT_MemInfo_new_varsize(size_t size) { return NRT_MemInfo_new_varsize_dtor(size, NULL); }
HIDDEN void *NRT_MemInfo_varsize_alloc(Memory *memory, size_t size) {
    memory->data = malloc(size ? size : 1);
    memory->size = memory->data ? size : 0;
    return memory->data;
}
HIDDEN void *NRT_MemInfo_varsize_realloc(Memory *memory, size_t size) {
    void *data = realloc(memory->data, size ? size : 1);
    if (!data) return NULL;
    memory->data = data;
    memory->size = size;
    return data;
}
HIDDEN void NRT_MemInfo_varsize_free(Memory *memory, void *data) {
    free(data);
    if (memory->data == data) memory->data = NULL;
}

/* Strides of a C-contiguous array in another shape; 0 if it is none, or the shape holds another number of elements. */
HIDDEN int numba_attempt_nocopy_reshape(intptr_t axes, const intptr_t *shape, const intptr_t *strides, intptr_t new_axes,
                                        const intptr_t *new_shape, intptr_t *new_strides, intptr_t size, int is_fortran) {
    if (is_fortran) return 0;
    intptr_t elements = 1, wanted = 1;
    for (intptr_t i = axes; i-- > 0;) {
        if (shape[i] > 1 && strides[i] != elements * size) return 0;
        elements *= shape[i];
    }
    for (intptr_t i = new_axes; i-- > 0;) {
        new_strides[i] = size * (wanted ? wanted : 1);
        wanted *= new_shape[i];
    }
    return elements == wanted;
}

/* -- arguments ------------------------------------------------------------------------------------------------------ */

static PyObject *scalar_types[128], *unpickle, *error_type;

static int number_of(char letter) {
    switch (letter) {
    case '?': return NPY_BOOL;
    case 'b': return NPY_BYTE;
    case 'B': return NPY_UBYTE;
    case 'h': return NPY_SHORT;
    case 'H': return NPY_USHORT;
    case 'i': return NPY_INT;
    case 'I': return NPY_UINT;
    case 'q': return NPY_LONG;
    case 'Q': return NPY_ULONG;
    case 'f': return NPY_FLOAT;
    case 'd': return NPY_DOUBLE;
    }
    return -1;
}

static int is_number(int found, int wanted) {
    return found == wanted || (wanted == NPY_LONG && found == NPY_LONGLONG) || (wanted == NPY_ULONG && found == NPY_ULONGLONG);
}

/* A kernel may write into an array that Python may not: callers hand on none that is read-only to be written. */
static int write_array(const char *letters, PyObject *object, int64_t *out) {
    if (!PyArray_Check(object)) return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    int axes = letters[1] - '0', flags = PyArray_FLAGS(array);
    if (PyArray_NDIM(array) != axes || !is_number(PyArray_TYPE(array), number_of(letters[0]))) return 0;
    if (!(flags & NPY_ARRAY_ALIGNED) || PyArray_DESCR(array)->byteorder == '>') return 0;
    if (letters[2] == 'C' && !(flags & NPY_ARRAY_C_CONTIGUOUS)) return 0;
    if (letters[2] == 'F' && !(flags & NPY_ARRAY_F_CONTIGUOUS)) return 0;
    const npy_intp *shape = PyArray_DIMS(array), *strides = PyArray_STRIDES(array);
    out[0] = 0, out[1] = (int64_t)object, out[2] = 1;
    out[3] = PyArray_ITEMSIZE(array), out[4] = (int64_t)PyArray_DATA(array);
    for (int i = 0; i < axes; i++) out[2] *= out[5 + i] = shape[i], out[5 + axes + i] = strides[i];
    return 5 + 2 * axes;
}

static int write_bytes(PyObject *object, int64_t *out) {
    char *data;
    Py_ssize_t size;
    if (!PyBytes_Check(object) || PyBytes_AsStringAndSize(object, &data, &size)) return 0;
    out[0] = 0, out[1] = (int64_t)object, out[2] = size, out[3] = 1, out[4] = (int64_t)data, out[5] = size, out[6] = 1;
    return 7;
}

/* 1 if the object is a number that fits; loosely: whole numbers fit every type of whole numbers that holds them */
static int write_number(char letter, PyObject *object, int64_t *out, int loosely) {
    PyObject *type = (PyObject *)Py_TYPE(object);
    if (letter == '?') {
        if (object != Py_True && object != Py_False && type != scalar_types['?']) return 0;
        *out = object == Py_True || (object != Py_False && PyObject_IsTrue(object) == 1);
        return 1;
    }
    if (letter == 'd' || letter == 'f') {
        int exact = type == scalar_types[(int)letter] || (letter == 'd' && PyFloat_CheckExact(object));
        if (!exact && !(loosely && (PyFloat_Check(object) || PyLong_CheckExact(object)))) return 0;
        double value = PyFloat_AsDouble(object);
        float narrow = (float)value;
        *out = 0;
        memcpy(out, letter == 'd' ? (void *)&value : (void *)&narrow, letter == 'd' ? 8 : 4);
        return !PyErr_Occurred();
    }
    if (letter == 'q' && PyLong_CheckExact(object)) {
        int overflow;
        *out = PyLong_AsLongLongAndOverflow(object, &overflow);
        return !overflow;
    }
    if (type != scalar_types[(int)letter] && !(loosely && PyIndex_Check(object) && !PyBool_Check(object))) return 0;
    PyObject *number = PyNumber_Index(object);
    if (!number) return 0;
    int overflow = 0;
    if (letter == 'Q') *out = (int64_t)PyLong_AsUnsignedLongLong(number);
    else *out = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    int64_t value = *out;
    if (overflow || PyErr_Occurred()) return 0;
    switch (letter) {
    case 'b': return value == (int8_t)value;
    case 'B': return value == (uint8_t)value;
    case 'h': return value == (int16_t)value;
    case 'H': return value == (uint16_t)value;
    case 'i': return value == (int32_t)value;
    case 'I': return value == (uint32_t)value;
    }
    return 1;
}

/* Write one argument and go on behind its letters; 0 if it does not fit. */
static int write_argument(const char **letters, PyObject *object, int64_t **out, int loosely) {
    char letter = *(*letters)++;
    int count;
    switch (letter) {
    case 'A':
        count = write_array(*letters, object, *out);
        *letters += 3;
        *out += count;
        return count;
    case 'y':
        count = write_bytes(object, *out);
        *out += count;
        return count;
    case 'n': return object == Py_None;
    case '(': {
        if (!PyTuple_Check(object)) return 0;
        Py_ssize_t size = PyTuple_Size(object), i = 0;
        for (; **letters != ')'; i++)
            if (i >= size || !write_argument(letters, PyTuple_GetItem(object, i), out, loosely)) return 0;
        (*letters)++;
        return i == size;
    }
    }
    count = write_number(letter, object, *out, loosely);
    *out += count;
    return count;
}

/* -- what is returned ----------------------------------------------------------------------------------------------- */

static void release_memory(PyObject *capsule) { release(PyCapsule_GetPointer(capsule, "maskwright")); }

/* The argument in whose memory an array lies, borrowed; NULL if it lies in none. */
static PyObject *owner_of(PyObject *object, const char *data) {
    const char *first = NULL;
    Py_ssize_t size = 0;
    if (PyArray_Check(object)) first = PyArray_BYTES((PyArrayObject *)object), size = PyArray_NBYTES((PyArrayObject *)object);
    else if (PyBytes_Check(object)) first = PyBytes_AsString(object), size = PyBytes_Size(object);
    else if (PyTuple_Check(object)) {
        for (Py_ssize_t i = 0; i < PyTuple_Size(object); i++) {
            PyObject *found = owner_of(PyTuple_GetItem(object, i), data);
            if (found) return found;
        }
    }
    return first && data >= first && data < first + (size ? size : 1) ? object : NULL;
}

static PyObject *made_array(const char *letters, int64_t *numbers, PyObject *const *arguments, Py_ssize_t count) {
    int axes = letters[1] - '0';
    PyObject *owner = NULL;
    if (numbers[0]) owner = PyCapsule_New((void *)numbers[0], "maskwright", release_memory);
    else {
        for (Py_ssize_t i = 0; i < count && !owner; i++) owner = owner_of(arguments[i], (char *)numbers[4]);
        if (!owner) return PyErr_Format(PyExc_SystemError, "a kernel returned an array that nobody keeps alive");
        Py_INCREF(owner);
    }
    if (!owner) return NULL;
    PyObject *array = PyArray_NewFromDescr(
        &PyArray_Type, PyArray_DescrFromType(number_of(letters[0])), axes, (npy_intp *)(numbers + 5),
        (npy_intp *)(numbers + 5 + axes), (void *)numbers[4], NPY_ARRAY_WRITEABLE, NULL);
    if (!array) {
        Py_DECREF(owner);
        return NULL;
    }
    PyArray_UpdateFlags((PyArrayObject *)array, NPY_ARRAY_UPDATE_ALL);
    if (PyArray_SetBaseObject((PyArrayObject *)array, owner)) { /* which takes the reference in any case */
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

#define MOST_CLASSES 64
static PyObject *classes[MOST_CLASSES]; /* once they are needed: their modules import kernels */

static PyObject *attribute(const char *module, const char *name) {
    PyObject *from = PyImport_ImportModule(module), *found = from ? PyObject_GetAttrString(from, name) : NULL;
    Py_XDECREF(from);
    return found;
}

/* Make one object and go on behind its letters and its numbers. */
static PyObject *made(const char **letters, int64_t **numbers, PyObject *const *arguments, Py_ssize_t count) {
    char letter = *(*letters)++;
    int64_t number = **numbers;
    if (letter == 'A') {
        const char *rest = *letters;
        int64_t *first = *numbers;
        *letters += 3;
        *numbers += 5 + 2 * (rest[1] - '0');
        return made_array(rest, first, arguments, count);
    }
    if (letter == 'T') {
        int number = *(*letters)++ - '0';
        PyObject *plain = made(letters, numbers, arguments, count), *named = NULL;
        if (plain && !classes[number])
            classes[number] = attribute(maskwright_classes[number][0], maskwright_classes[number][1]);
        if (plain && classes[number]) named = PyObject_CallMethod(classes[number], "_make", "(O)", plain);
        Py_XDECREF(plain);
        return named;
    }
    if (letter == '(') {
        PyObject *items[MOST_ITEMS];
        Py_ssize_t size = 0;
        while (**letters != ')') { /* `build.py` lets no tuple have more than there is room for */
            items[size] = made(letters, numbers, arguments, count);
            if (!items[size++]) {
                while (--size >= 0) Py_XDECREF(items[size]);
                return NULL;
            }
        }
        (*letters)++;
        PyObject *tuple = PyTuple_New(size);
        for (Py_ssize_t i = 0; tuple && i < size; i++) PyTuple_SetItem(tuple, i, items[i]);
        return tuple;
    }
    (*numbers)++;
    double real;
    float narrow;
    switch (letter) {
    case 'n': Py_RETURN_NONE;
    case '?': return PyBool_FromLong(number & 1);
    case 'b': return PyLong_FromLong((int8_t)number);
    case 'h': return PyLong_FromLong((int16_t)number);
    case 'i': return PyLong_FromLong((int32_t)number);
    case 'q': return PyLong_FromLongLong(number);
    case 'B':
    case 'H':
    case 'I':
    case 'Q': return PyLong_FromUnsignedLongLong((uint64_t)number);
    case 'd': memcpy(&real, &number, 8); return PyFloat_FromDouble(real);
    case 'f': memcpy(&narrow, &number, 4); return PyFloat_FromDouble(narrow);
    }
    return PyErr_Format(PyExc_SystemError, "a kernel returned a value of type %c", letter);
}

/* -- calls ---------------------------------------------------------------------------------------------------------- */

/* What a kernel raises: a pickled tuple of the class, its arguments and a place. */
typedef struct {
    const char *pickled;
    int32_t size;
} Raised;

static PyObject *raise_from(const Entry *entry, int32_t status, const Raised *raised) {
    if (status >= 1 && raised) {
        PyObject *bytes = PyBytes_FromStringAndSize(raised->pickled, raised->size);
        PyObject *told = bytes ? PyObject_CallFunctionObjArgs(unpickle, bytes, NULL) : NULL;
        Py_XDECREF(bytes);
        if (told) {
            PyErr_SetObject(PyTuple_GetItem(told, 0), PyTuple_GetItem(told, 1));
            Py_DECREF(told);
        }
        return NULL;
    }
    return PyErr_Format(PyExc_SystemError, "%s.%s ended with status %d", entry->module, entry->name, status);
}

/* Threads that have spent their budgets, as `deadline.py` says: how many, who, and whether a kernel was told. */
#define MOST_LATE 15
HIDDEN int64_t maskwright_deadline[1 + 2 * MOST_LATE];

static int was_told(void) {
    if (!__atomic_load_n(maskwright_deadline, __ATOMIC_RELAXED)) return 0;
    for (int k = 1; k <= MOST_LATE; k++)
        if (maskwright_deadline[k] == (int64_t)pthread_self() && maskwright_deadline[k + MOST_LATE]) return 1;
    return 0;
}

/* What a kernel returned, if it was not told to stop: then it is worth nothing. */
static PyObject *unless_told(PyObject *returned) {
    if (!was_told()) return returned;
    Py_XDECREF(returned);
    PyErr_Clear();
    PyObject *stop = attribute("maskwright.kernels.deadline", "stop");
    PyObject *none = stop ? PyObject_CallNoArgs(stop) : NULL;
    Py_XDECREF(stop);
    return none;
}

static PyObject *refuse(const Entry *first, PyObject *const *arguments, Py_ssize_t count) {
    PyObject *list = PyList_New(0), *told = NULL, *comma = PyUnicode_FromString(", ");
    for (Py_ssize_t i = 0; list && i < count; i++) {
        PyObject *text;
        if (PyArray_Check(arguments[i])) {
            PyArrayObject *array = (PyArrayObject *)arguments[i];
            const char *layout = PyArray_IS_C_CONTIGUOUS(array) ? "" : " not contiguous";
            const char *place = PyArray_ISALIGNED(array) ? "" : " not aligned";
            text = PyUnicode_FromFormat(
                "%S array of %d axes%s%s", PyArray_DESCR(array), PyArray_NDIM(array), layout, place);
        } else text = PyType_GetName(Py_TYPE(arguments[i]));
        if (!text || PyList_Append(list, text)) return NULL;
        Py_DECREF(text);
    }
    if (list && comma) told = PyUnicode_Join(comma, list);
    PyObject *error = told ? PyObject_CallFunction(error_type, "ssO", first->module, first->name, told) : NULL;
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error), Py_XDECREF(told), Py_XDECREF(list), Py_XDECREF(comma);
    return NULL;
}

static PyObject *call(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    const Entry *first = PyCapsule_GetPointer(self, NULL);
    int64_t in[MOST_SLOTS], out[MOST_SLOTS];
    for (int loosely = 0; loosely < 2; loosely++) {
        for (const Entry *entry = first; entry->name == first->name; entry++) {
            const char *letters = entry->arguments;
            int64_t *next = in;
            Py_ssize_t i = 0;
            int fits = 1;
            for (; fits && *letters; i++) {
                if (*letters == 'o') {
                    fits = i >= count;
                    letters++;
                } else fits = i < count && write_argument(&letters, arguments[i], &next, loosely);
            }
            if (PyErr_Occurred()) PyErr_Clear(); /* a number that fits no type is refused below */
            if (!fits || i < count) continue;
            void *raised = NULL;
            PyThreadState *state = PyEval_SaveThread();
            int32_t status = entry->entry(in, out, &raised);
            PyEval_RestoreThread(state);
            if (status == -2) return unless_told(Py_NewRef(Py_None));
            if (status) return raise_from(entry, status, raised);
            const char *returned = entry->returned;
            next = out;
            return unless_told(made(&returned, &next, arguments, count));
        }
    }
    return refuse(first, arguments, count);
}

static PyObject *call_loop(PyObject *self, PyObject *argument) {
    const Loop *loop = PyCapsule_GetPointer(self, NULL);
    int64_t address = PyLong_AsLongLong(argument);
    if (address == -1 && PyErr_Occurred()) return NULL;
    PyThreadState *state = PyEval_SaveThread();
    loop->loop(address);
    PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

/* -- the module ----------------------------------------------------------------------------------------------------- */

static PyMethodDef loop_method = {"loop", call_loop, METH_O, NULL};

static int runs(const char *variant) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!strcmp(variant, "v3")) return __builtin_cpu_supports("x86-64-v3");
    if (!strcmp(variant, "v4")) return __builtin_cpu_supports("x86-64-v4");
#endif
    return !strcmp(variant, "base");
}

static PyObject *bound(PyMethodDef *method, const void *to) {
    PyObject *capsule = PyCapsule_New((void *)to, NULL, NULL);
    PyObject *function = capsule ? PyCFunction_NewEx(method, capsule, NULL) : NULL;
    Py_XDECREF(capsule);
    return function;
}

static PyObject *all_kernels(const Entry *entries) {
    PyObject *all = PyDict_New();
    for (const Entry *each = entries; all && each->name; each++) {
        if (each > entries && each->name == each[-1].name) continue;
        PyMethodDef *method = calloc(1, sizeof(PyMethodDef)); /* lives as long as the process */
        if (!method) return PyErr_NoMemory();
        *method = (PyMethodDef){each->name, (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL};
        PyObject *key = Py_BuildValue("(ss)", each->module, each->name), *function = bound(method, each);
        if (!key || !function || PyDict_SetItem(all, key, function)) return NULL;
        Py_DECREF(key), Py_DECREF(function);
    }
    return all;
}

/* (address, function) of each loop */
static PyObject *all_loops(const Loop *loops) {
    PyObject *all = PyDict_New();
    for (const Loop *each = loops; all && each->name; each++) {
        PyObject *key = Py_BuildValue("(sss)", each->module, each->name, each->constants);
        PyObject *function = bound(&loop_method, each);
        PyObject *pair = Py_BuildValue("(LN)", (long long)(intptr_t)each->loop, function);
        if (!key || !pair || PyDict_SetItem(all, key, pair)) return NULL;
        Py_DECREF(key), Py_DECREF(pair);
    }
    return all;
}

static int set_up(PyObject *module, const Variant *variant) {
    static const char *names[][2] = {{"?", "bool_"}, {"b", "int8"},   {"B", "uint8"}, {"h", "int16"},
                                     {"H", "uint16"}, {"i", "int32"}, {"I", "uint32"}, {"q", "int64"},
                                     {"Q", "uint64"}, {"f", "float32"}, {"d", "float64"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(scalar_types[(int)*names[i][0]] = attribute("numpy", names[i][1]))) return -1;
    if (!(unpickle = attribute("pickle", "loads")) || !(error_type = attribute("maskwright.kernels.native", "not_compiled")))
        return -1;
    PyObject *kernels = all_kernels(variant->entries), *loops = all_loops(variant->loops);
    if (!kernels || !loops) return -1;
    if (PyModule_AddObject(module, "kernels", kernels) || PyModule_AddObject(module, "loops", loops)) return -1;
    PyObject *words = PyLong_FromVoidPtr(maskwright_deadline);
    if (!words || PyModule_AddObject(module, "deadline", words)) return -1;
    return PyModule_AddStringConstant(module, "variant", variant->name) ||
                   PyModule_AddStringConstant(module, "digest", maskwright_digest)
               ? -1
               : 0;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    import_array();
    const Variant *chosen = NULL;
    for (const Variant *each = maskwright_variants; each->name; each++)
        if (runs(each->name)) chosen = each;
    if (!chosen) return PyErr_Format(PyExc_ImportError, "the library has no code for this processor");
    PyObject *module = PyModule_Create(&definition);
    if (module && set_up(module, chosen)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
