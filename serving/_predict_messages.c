/* Reads PredictRequests and writes PredictResponses without a Python object for each of their submessages.

   What is read: a model_spec with a name; inputs whose values, of fixed width, are all there, in tensor_content,
   float_val or double_val; output_filter. What is written: outputs of float32, float64, int32 and int64.

   Anything else, right or wrong, is left to protobuf and serving/messages.py, so nothing here has errors to tell.

   References: tensorflow_serving/apis/predict.proto and model.proto; tensorflow/core/framework/tensor.proto,
   tensor_shape.proto and types.proto; the encoding at https://protobuf.dev/programming-guides/encoding. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Values in messages are little-endian, and used as they are."
#endif

enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };

enum { MOST_INPUTS = 32, MOST_OUTPUTS = 16, MOST_DIMENSIONS = 16, ALIGNMENT = 64 };

enum {
    DT_FLOAT = 1,
    DT_DOUBLE = 2,
    DT_INT32 = 3,
    DT_INT64 = 9,
};

/* Bytes of a value, by DataType; 0: not of fixed width, or not for here. */
static const uint8_t WIDTHS[] = {
    [DT_FLOAT] = 4,
    [DT_DOUBLE] = 8,
    [DT_INT32] = 4,
    [4] = 1, /* uint8 */
    [5] = 2, /* int16 */
    [6] = 1, /* int8 */
    [8] = 8, /* complex64 */
    [DT_INT64] = 8,
    [10] = 1,  /* bool */
    [14] = 2,  /* bfloat16 */
    [17] = 2,  /* uint16 */
    [18] = 16, /* complex128 */
    [19] = 2,  /* half */
    [22] = 4,  /* uint32 */
    [23] = 8,  /* uint64 */
};

typedef struct {
    const uint8_t *at, *end;
} Bytes;

typedef struct {
    uint32_t field, type;
    uint64_t number; /* of a VARINT */
    Bytes bytes;     /* of the other types */
} Field;

static int read_varint(Bytes *from, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; from->at < from->end && shift < 64; shift += 7) {
        uint8_t byte = *from->at++;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return 1;
    }
    return 0;
}

/* Read a tag or a length: in more than five bytes protobuf takes none. */
static int read_short(Bytes *from, uint64_t *value)
{
    const uint8_t *start = from->at;
    return read_varint(from, value) && from->at - start <= 5 && *value <= UINT32_MAX;
}

static int read_field(Bytes *from, Field *field)
{
    uint64_t tag, size;
    if (!read_short(from, &tag))
        return 0;
    field->field = (uint32_t)tag >> 3;
    field->type = tag & 7;
    switch (field->type) {
    case VARINT:
        return read_varint(from, &field->number);
    case FIXED_64:
        size = 8;
        break;
    case FIXED_32:
        size = 4;
        break;
    case BYTES:
        if (!read_short(from, &size))
            return 0;
        break;
    default:
        return 0;
    }
    if (size > (uint64_t)(from->end - from->at))
        return 0;
    field->bytes = (Bytes){from->at, from->at + size};
    from->at += size;
    return 1;
}

static int is(const Field *field, uint32_t number, uint32_t type)
{
    return field->field == number && field->type == type;
}

/* Set `*text` to a new string; 0: there is one already, or it is not UTF-8. */
static int take_text(const Field *field, PyObject **text)
{
    if (*text != NULL)
        return 0;
    *text = PyUnicode_DecodeUTF8((const char *)field->bytes.at, field->bytes.end - field->bytes.at, "strict");
    return *text != NULL;
}

/* Return (name, version, label, signature name) of a ModelSpec, or NULL. */
static PyObject *read_spec(Bytes from)
{
    PyObject *name = NULL, *version = NULL, *label = NULL, *signature = NULL, *spec = NULL;
    Field field, inner;
    while (from.at < from.end) {
        if (!read_field(&from, &field) || field.type != BYTES)
            goto end;
        int understood = 0;
        if (field.field == 1) {
            understood = take_text(&field, &name);
        } else if (field.field == 2 && version == NULL && label == NULL) {
            inner = (Field){.number = 0};
            understood = field.bytes.at == field.bytes.end ||
                         (read_field(&field.bytes, &inner) && is(&inner, 1, VARINT) && field.bytes.at == field.bytes.end);
            version = understood ? PyLong_FromLongLong((int64_t)inner.number) : NULL;
        } else if (field.field == 3) {
            understood = take_text(&field, &signature);
        } else if (field.field == 4 && version == NULL) {
            understood = take_text(&field, &label);
        }
        if (!understood)
            goto end;
    }
    if (name != NULL && PyUnicode_GetLength(name) > 0) {
        if (signature == NULL)
            signature = PyUnicode_FromStringAndSize("", 0);
        if (signature != NULL)
            spec = PyTuple_Pack(4, name, version ? version : Py_None, label ? label : Py_None, signature);
    }
end:
    Py_XDECREF(name);
    Py_XDECREF(version);
    Py_XDECREF(label);
    Py_XDECREF(signature);
    return spec;
}

typedef struct {
    uint64_t type;
    int rank;
    int64_t shape[MOST_DIMENSIONS];
    Bytes values;
} Tensor;

static int read_shape(Bytes from, Tensor *tensor)
{
    Field dimension, size;
    while (from.at < from.end) {
        if (tensor->rank == MOST_DIMENSIONS || !read_field(&from, &dimension) || !is(&dimension, 2, BYTES))
            return 0;
        size = (Field){.number = 0};
        if (dimension.bytes.at < dimension.bytes.end &&
            (!read_field(&dimension.bytes, &size) || !is(&size, 1, VARINT) || dimension.bytes.at < dimension.bytes.end))
            return 0;
        if (size.number > INT64_MAX)
            return 0;
        tensor->shape[tensor->rank++] = (int64_t)size.number;
    }
    return 1;
}

/* The type whose values stand in a field of TensorProto as they lie in memory; 0: there is none. */
static uint64_t type_of_values(uint32_t field)
{
    return field == 5 ? DT_FLOAT : field == 6 ? DT_DOUBLE : 0;
}

static int read_tensor(Bytes from, Tensor *tensor)
{
    Field field;
    uint64_t typed = 0, count = 1, extent = 1;
    int has_shape = 0, has_values = 0;
    memset(tensor, 0, sizeof *tensor);
    while (from.at < from.end) {
        if (!read_field(&from, &field))
            return 0;
        if (is(&field, 1, VARINT) && !tensor->type) {
            tensor->type = field.number;
        } else if (is(&field, 2, BYTES) && !has_shape) {
            has_shape = 1;
            if (!read_shape(field.bytes, tensor))
                return 0;
        } else if (field.type == BYTES && !has_values && (field.field == 4 || type_of_values(field.field))) {
            has_values = 1;
            typed = type_of_values(field.field);
            tensor->values = field.bytes;
        } else {
            return 0;
        }
    }
    if (tensor->type >= sizeof WIDTHS || !WIDTHS[tensor->type] || (typed && typed != tensor->type))
        return 0;
    uint64_t size = (uint64_t)(tensor->values.end - tensor->values.at), width = WIDTHS[tensor->type];
    for (int i = 0; i < tensor->rank; i++) {
        uint64_t length = (uint64_t)tensor->shape[i];
        count *= length;
        /* numpy refuses an array that would be too large without its dimensions of 0, too. */
        if (__builtin_mul_overflow(extent, length ? length : 1, &extent) || extent > INT64_MAX / width)
            return 0;
    }
    return size % width == 0 && size / width == count;
}

/* An entry of `inputs`. */
typedef struct {
    PyObject *alias;
    Tensor tensor;
} Input;

static int read_input(Bytes from, Input *input)
{
    Field field;
    int has_tensor = 0;
    input->alias = NULL;
    while (from.at < from.end) {
        if (!read_field(&from, &field))
            return 0;
        if (is(&field, 1, BYTES) ? !take_text(&field, &input->alias)
                                 : !is(&field, 2, BYTES) || has_tensor++ || !read_tensor(field.bytes, &input->tensor))
            return 0;
    }
    return input->alias != NULL && has_tensor;
}

static Py_ssize_t size_of(const Tensor *tensor) { return tensor->values.end - tensor->values.at; }

static Py_ssize_t rounded_up(Py_ssize_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Return (alias, type, shape, place of the values), or NULL. */
static PyObject *described(const Input *input, Py_ssize_t place)
{
    PyObject *shape = PyTuple_New(input->tensor.rank);
    for (int i = 0; shape != NULL && i < input->tensor.rank; i++) {
        PyObject *size = PyLong_FromLongLong(input->tensor.shape[i]);
        if (size == NULL || PyTuple_SetItem(shape, i, size) < 0)
            Py_CLEAR(shape);
    }
    return shape == NULL ? NULL : Py_BuildValue("OINn", input->alias, (unsigned)input->tensor.type, shape, place);
}

/* Return (inputs, the values of all), or NULL. TensorFlow uses memory as it is if it begins at a multiple of 64
   (EIGEN_MAX_ALIGN_BYTES); else it copies, so they are copied to such places at once. */
static PyObject *placed(const Input *inputs, int count)
{
    Py_ssize_t size = ALIGNMENT - 1;
    for (int i = 0; i < count; i++)
        size += rounded_up(size_of(&inputs[i].tensor));
    PyObject *all = PyTuple_New(count), *values = PyBytes_FromStringAndSize(NULL, size);
    if (all == NULL || values == NULL)
        goto failed;
    char *start = PyBytes_AsString(values);
    Py_ssize_t place = (Py_ssize_t)(-(uintptr_t)start % ALIGNMENT);
    for (int i = 0; i < count; i++) {
        const Tensor *tensor = &inputs[i].tensor;
        PyObject *input = described(&inputs[i], place);
        if (input == NULL || PyTuple_SetItem(all, i, input) < 0)
            goto failed;
        if (size_of(tensor))
            memcpy(start + place, tensor->values.at, (size_t)size_of(tensor));
        place += rounded_up(size_of(tensor));
    }
    return Py_BuildValue("NN", all, values);
failed:
    Py_XDECREF(all);
    Py_XDECREF(values);
    return NULL;
}

PyDoc_STRVAR(read_doc, "read(request: bytes)\n"
                       "--\n\n"
                       "Return ((name, version, label, signature name), output filter, (inputs, values)), or None.\n\n"
                       "inputs: of each (alias, number of the dtype, shape, place of its values in `values`).");

static PyObject *predict_messages_read(PyObject *module, PyObject *request)
{
    (void)module;
    char *text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(request, &text, &size) < 0)
        return NULL;
    Bytes from = {(const uint8_t *)text, (const uint8_t *)text + size};
    PyObject *spec = NULL, *alias, *result = NULL, *filter = PyList_New(0);
    Input inputs[MOST_INPUTS];
    Field field;
    int count = 0, understood = filter != NULL;
    while (understood && from.at < from.end) {
        understood = 0;
        if (!read_field(&from, &field) || field.type != BYTES)
            break;
        if (field.field == 1 && spec == NULL) {
            spec = read_spec(field.bytes);
            understood = spec != NULL;
        } else if (field.field == 2 && count < MOST_INPUTS) {
            understood = read_input(field.bytes, &inputs[count++]);
        } else if (field.field == 3) {
            alias = NULL;
            understood = take_text(&field, &alias) && PyList_Append(filter, alias) == 0;
            Py_XDECREF(alias);
        }
    }
    if (understood && spec != NULL)
        result = Py_BuildValue("OON", spec, filter, placed(inputs, count));
    for (int i = 0; i < count; i++)
        Py_XDECREF(inputs[i].alias);
    Py_XDECREF(spec);
    Py_XDECREF(filter);
    if (result != NULL || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)))
        return result;
    PyErr_Clear();
    Py_RETURN_NONE;
}

static Py_ssize_t varint_size(uint64_t value)
{
    Py_ssize_t size = 1;
    for (; value > 0x7F; value >>= 7)
        size++;
    return size;
}

static uint8_t *put_varint(uint8_t *to, uint64_t value)
{
    for (; value > 0x7F; value >>= 7)
        *to++ = (uint8_t)(value | 0x80);
    *to++ = (uint8_t)value;
    return to;
}

static uint8_t *put_head(uint8_t *to, int field, Py_ssize_t size)
{
    return put_varint(put_varint(to, (uint64_t)(field << 3 | BYTES)), (uint64_t)size);
}

/* The size of a field with so many bytes, whose number is below 16. */
static Py_ssize_t sized(Py_ssize_t size) { return 1 + varint_size((uint64_t)size) + size; }

/* An output, and the sizes of its parts as they will be written. */
typedef struct {
    const char *alias;
    Py_ssize_t alias_size;
    Py_buffer view;
    int type;
    int field; /* of TensorProto, for the values */
    Py_ssize_t shape_size, values_size, tensor_size, entry_size;
} Output;

static int64_t integer_at(const Output *output, Py_ssize_t i)
{
    int32_t narrow;
    int64_t wide;
    if (output->type == DT_INT32) {
        memcpy(&narrow, (const char *)output->view.buf + 4 * i, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const char *)output->view.buf + 8 * i, sizeof wide);
    return wide;
}

static Py_ssize_t dimension_size(Py_ssize_t size) { return size ? 1 + varint_size((uint64_t)size) : 0; }

/* Find out how an output is to be written; 0: not here. */
static int measure(Output *output, int as_content)
{
    const Py_buffer *view = &output->view;
    const char *format = view->format;
    if (format == NULL || format[0] == 0 || format[1] != 0)
        return 0;
    if (*format == 'f')
        output->type = DT_FLOAT, output->field = 5;
    else if (*format == 'd')
        output->type = DT_DOUBLE, output->field = 6;
    else if (strchr("ilq", *format) && view->itemsize == 4)
        output->type = DT_INT32, output->field = 7;
    else if (strchr("ilq", *format) && view->itemsize == 8)
        output->type = DT_INT64, output->field = 10;
    else
        return 0;
    if (as_content)
        output->field = 4;
    output->values_size = view->len;
    if (output->field == 7 || output->field == 10) {
        output->values_size = 0;
        for (Py_ssize_t i = 0; i < view->len / view->itemsize; i++)
            output->values_size += varint_size((uint64_t)integer_at(output, i));
    }
    output->shape_size = 0;
    for (int i = 0; i < view->ndim; i++)
        output->shape_size += sized(dimension_size(view->shape[i]));
    output->tensor_size = 2 + sized(output->shape_size) + (output->values_size ? sized(output->values_size) : 0);
    output->entry_size = sized(output->alias_size) + sized(output->tensor_size);
    return 1;
}

static uint8_t *put_output(uint8_t *to, const Output *output)
{
    const Py_buffer *view = &output->view;
    to = put_head(to, 1, output->entry_size);
    to = put_head(to, 1, output->alias_size);
    memcpy(to, output->alias, (size_t)output->alias_size);
    to = put_head(to + output->alias_size, 2, output->tensor_size);
    *to++ = 1 << 3 | VARINT;
    *to++ = (uint8_t)output->type;
    to = put_head(to, 2, output->shape_size);
    for (int i = 0; i < view->ndim; i++) {
        to = put_head(to, 2, dimension_size(view->shape[i]));
        if (view->shape[i]) {
            *to++ = 1 << 3 | VARINT;
            to = put_varint(to, (uint64_t)view->shape[i]);
        }
    }
    if (!output->values_size)
        return to;
    to = put_head(to, output->field, output->values_size);
    if (output->field == 7 || output->field == 10) {
        for (Py_ssize_t i = 0; i < view->len / view->itemsize; i++)
            to = put_varint(to, (uint64_t)integer_at(output, i));
        return to;
    }
    memcpy(to, view->buf, (size_t)view->len);
    return to + view->len;
}

PyDoc_STRVAR(write_doc, "write(spec: bytes, outputs: dict[str, numpy.ndarray], as_content: bool)\n"
                        "--\n\n"
                        "Return a PredictResponse with this serialized ModelSpec, or None.");

static PyObject *predict_messages_write(PyObject *module, PyObject *arguments)
{
    (void)module;
    char *spec;
    Py_ssize_t spec_size;
    PyObject *outputs, *alias, *array, *response = NULL;
    int as_content;
    if (!PyArg_ParseTuple(arguments, "y#O!p", &spec, &spec_size, &PyDict_Type, &outputs, &as_content))
        return NULL;
    Output found[MOST_OUTPUTS];
    int count = 0, understood = PyDict_Size(outputs) <= MOST_OUTPUTS;
    Py_ssize_t position = 0, size = sized(spec_size);
    while (understood && PyDict_Next(outputs, &position, &alias, &array)) {
        Output *output = &found[count];
        output->alias = PyUnicode_AsUTF8AndSize(alias, &output->alias_size);
        if (output->alias == NULL)
            break;
        if (PyObject_GetBuffer(array, &output->view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) < 0) {
            PyErr_Clear(); /* It lies otherwise in memory, or is of a type that buffers do not know. */
            understood = 0;
            break;
        }
        count++;
        understood = measure(output, as_content);
        size += understood ? sized(output->entry_size) : 0;
    }
    /* Nobody could parse a larger message. */
    understood = understood && size <= INT32_MAX;
    if (understood && !PyErr_Occurred() && (response = PyBytes_FromStringAndSize(NULL, size)) != NULL) {
        uint8_t *to = (uint8_t *)PyBytes_AsString(response);
        for (int i = 0; i < count; i++)
            to = put_output(to, &found[i]);
        memcpy(put_head(to, 2, spec_size), spec, (size_t)spec_size);
    }
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&found[i].view);
    if (response == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return response;
}

static PyMethodDef methods[] = {{"read", predict_messages_read, METH_O, read_doc},
                                {"write", predict_messages_write, METH_VARARGS, write_doc},
                                {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "serving._predict_messages", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__predict_messages(void);
PyMODINIT_FUNC PyInit__predict_messages(void) { return PyModuleDef_Init(&definition); }
