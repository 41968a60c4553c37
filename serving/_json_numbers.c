/* Reads predict bodies whose tensors are all numbers into one buffer, without a Python object for each number.

   Which bodies: an object with "instances" or "inputs", and perhaps "signature_name". Its value is a tensor, which
   is a list of numbers or of equally long, equally deep lists of them, none of them empty; below "inputs" it may be
   an object of such tensors. Names are printable ASCII without escapes.

   Anything else, right or wrong, is left to serving/json_tensors.py, so nothing here has errors to tell.

   Numbers of a tensor stay integers (int64) as long as all are integers of at most 18 digits; otherwise each is the
   double nearest to what is written. A large body is read without the interpreter's lock: other threads go on. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
    MOST_TENSORS = 512,
    MOST_DIMENSIONS = 8,
    MOST_DIGITS = 19,         /* of an unsigned integer of 64 bits, whatever they are */
    MOST_INTEGER_DIGITS = 18, /* the same, signed */
    MOST_EXACT_POWER = 22,    /* of ten, as a double */
    MOST_DIVISOR_POWER = 27,  /* of five, in 64 bits */
    ALIGNMENT = 64,
    MOST_EXPONENT = 100000,   /* larger ones are cut off here: sums must not overflow, and no double is so large */
};

/* Bytes from which giving the lock away and taking it back costs little beside the reading. */
static const Py_ssize_t LARGE_BODY = 1 << 17;

static const double EXACT_POWERS[MOST_EXACT_POWER + 1] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static uint64_t powers_of_five[MOST_DIVISOR_POWER + 1];

typedef struct {
    const char *name; /* NULL: it is the only tensor, and has none. */
    Py_ssize_t name_size;
    Py_ssize_t first, count; /* Where its numbers are. */
    int whole;               /* They are int64, not doubles. */
    int rank;
    Py_ssize_t shape[MOST_DIMENSIONS];
} Tensor;

/* A number too long or too far from 1 for the arithmetic here: Python's own reads it afterwards. */
typedef struct {
    double *place;
    const char *text;
} Hard;

typedef struct {
    const char *at, *start, *end; /* The body. A zero byte follows it, so that looking one further is no harm. */
    char *numbers;                /* Eight bytes each. */
    Py_ssize_t count;
    int tensor_count;
    Hard *hard;
    Py_ssize_t hard_count, hard_room;
    const char *signature_name; /* NULL: none. */
    Py_ssize_t signature_name_size;
    int row_format;
    Tensor tensors[MOST_TENSORS]; /* The last, as it need not be zeroed. */
} Reading;

static inline int is_digit(char c) { return (unsigned char)(c - '0') < 10; }

static inline const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')
        at++;
    return at;
}

#ifdef __SSE2__
static const uint64_t POWERS[] = {
    1,
    10,
    100,
    1000,
    10000,
    100000,
    1000000,
    10000000,
    100000000,
    1000000000,
    10000000000,
    100000000000,
    1000000000000,
    10000000000000,
    100000000000000,
    1000000000000000,
    10000000000000000,
};

static const uint64_t ZEROS = 0x3030303030303030;

/* From place n on: a mask of sixteen bytes for the last n. */
static const char LAST_OF_SIXTEEN[32] = {[16] = -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

static inline uint64_t eight_at(const char *at)
{
    uint64_t eight;
    memcpy(&eight, at, sizeof eight);
    return eight;
}

/* How many of the sixteen characters at `at` are digits, before the first that is none. */
static inline int count_digits(const char *at)
{
    __m128i values = _mm_xor_si128(_mm_loadu_si128((const __m128i *)at), _mm_set1_epi8('0'));
    __m128i digits = _mm_cmpeq_epi8(_mm_min_epu8(values, _mm_set1_epi8(9)), values);
    return __builtin_ctz(~(unsigned)_mm_movemask_epi8(digits));
}

/* The number that eight digits make, the first in the lowest byte: pairs of digits, then pairs of those, in parallel. */
static inline uint64_t eight_digits(uint64_t values)
{
    const uint64_t pairs = 0x000000FF000000FF;
    values = 10 * values + (values >> 8);
    return ((values & pairs) * 0x000F424000000064 + ((values >> 16) & pairs) * 0x0000271000000001) >> 32;
}
#endif

/* Append all digits at `at` to `*digits`, which may overflow, and return the first other character.

   Up to sixteen are taken together, without branches: how many digits a number has cannot be predicted, and a wrong
   guess costs as much as all of this. What is read are the sixteen characters that end with the last digit. */
static inline const char *append_digits(const Reading *reading, const char *at, uint64_t *digits)
{
#ifdef __SSE2__
    if (reading->end - at >= 16 && at - reading->start >= 16) {
        int count = count_digits(at);
        at += count;
        uint64_t first = (eight_at(at - 16) ^ ZEROS) & eight_at(LAST_OF_SIXTEEN + count);
        uint64_t second = (eight_at(at - 8) ^ ZEROS) & eight_at(LAST_OF_SIXTEEN + count + 8);
        *digits = *digits * POWERS[count] + eight_digits(first) * POWERS[8] + eight_digits(second);
    }
#else
    (void)reading;
#endif
    for (; is_digit(*at); at++)
        *digits = 10 * *digits + (uint64_t)(*at - '0');
    return at;
}

/* The double nearest to digits / 10**power, ties to even. The quotient of both, each shifted to use all of its 64
   bits, has 63 bits or 64; with the remainder it says all that rounding to 53 needs. */
static double quotient(uint64_t digits, int power)
{
    uint64_t divisor = powers_of_five[power];
    int shift = __builtin_clzll(digits), divisor_shift = __builtin_clzll(divisor);
    unsigned __int128 dividend = (unsigned __int128)(digits << shift) << 63;
    divisor <<= divisor_shift;
    uint64_t whole = (uint64_t)(dividend / divisor);
    int inexact = (unsigned __int128)whole * divisor != dividend;
    int surplus = 11 - __builtin_clzll(whole);
    uint64_t half = (uint64_t)1 << (surplus - 1), rest = whole & (2 * half - 1);
    uint64_t kept = whole >> surplus;
    if (rest > half || (rest == half && (inexact || (kept & 1))))
        kept++;
    /* The factor is a power of two, and neither it nor the result is subnormal, so this is exact. */
    uint64_t factor_bits = (uint64_t)(1023 + surplus - 63 - shift + divisor_shift - power) << 52;
    double factor;
    memcpy(&factor, &factor_bits, sizeof factor);
    return (double)kept * factor;
}

static int note_hard(Reading *reading, double *place, const char *text)
{
    if (reading->hard_count == reading->hard_room) {
        Py_ssize_t room = reading->hard_room ? 2 * reading->hard_room : 64;
        Hard *grown = realloc(reading->hard, (size_t)room * sizeof(Hard));
        if (grown == NULL)
            return 0;
        reading->hard = grown;
        reading->hard_room = room;
    }
    reading->hard[reading->hard_count++] = (Hard){place, text};
    return 1;
}

static void become_doubles(Reading *reading, Tensor *tensor)
{
    for (Py_ssize_t i = tensor->first; i < reading->count; i++) {
        int64_t whole;
        memcpy(&whole, reading->numbers + 8 * i, sizeof whole);
        double value = (double)whole;
        memcpy(reading->numbers + 8 * i, &value, sizeof value);
    }
    tensor->whole = 0;
}

/* Digits of a number without the zeros in front, which say nothing. */
static Py_ssize_t significant(const char *first, Py_ssize_t length)
{
    for (; *first == '0' || *first == '.'; first++)
        length -= *first == '0';
    return length;
}

/* Read the number at `at`, and return what follows it; NULL: it is none, or not for here. */
static inline const char *read_number(Reading *reading, Tensor *tensor, const char *at)
{
    const char *text = at;
    char *place = reading->numbers + 8 * reading->count;
    int negative = *at == '-';
    at += negative;
    const char *first = at;
    if (!is_digit(*at) || (*at == '0' && is_digit(at[1])))
        return NULL;
    uint64_t digits = 0;
    if (is_digit(at[1]))
        at = append_digits(reading, at, &digits);
    else
        digits = (uint64_t)(*at++ - '0');
    Py_ssize_t length = at - first;
    if (*at != '.' && (*at | 0x20) != 'e') {
        if (length > MOST_INTEGER_DIGITS)
            return NULL;
        int64_t whole = negative ? -(int64_t)digits : (int64_t)digits;
        double value = (double)whole;
        if (tensor->whole)
            memcpy(place, &whole, sizeof whole);
        else
            memcpy(place, &value, sizeof value);
        reading->count++;
        return at;
    }
    if (tensor->whole)
        become_doubles(reading, tensor);
    int64_t exponent = 0;
    if (*at == '.') {
        const char *fraction = ++at;
        at = append_digits(reading, at, &digits);
        if (at == fraction)
            return NULL;
        exponent = fraction - at;
        length += at - fraction;
    }
    if ((*at | 0x20) == 'e') {
        at++;
        int below = *at == '-';
        if (*at == '-' || *at == '+')
            at++;
        if (!is_digit(*at))
            return NULL;
        int64_t given = 0;
        for (; is_digit(*at); at++)
            if (given < MOST_EXPONENT)
                given = 10 * given + (*at - '0');
        exponent += below ? -given : given;
    }
    double value = 0;
    if (length > MOST_DIGITS && significant(first, length) > MOST_DIGITS) {
        if (!note_hard(reading, (double *)place, text))
            return NULL;
    } else if (digits <= (uint64_t)1 << 53 && -MOST_EXACT_POWER <= exponent && exponent <= MOST_EXACT_POWER) {
        value = (double)(int64_t)digits; /* Exact, as the power is: what comes of both is rounded once. */
        value = exponent <= 0 ? value / EXACT_POWERS[-exponent] : value * EXACT_POWERS[exponent];
    } else if (digits && -MOST_DIVISOR_POWER <= exponent && exponent < 0) {
        value = quotient(digits, (int)-exponent);
    } else if (!note_hard(reading, (double *)place, text)) {
        return NULL;
    }
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits ^= (uint64_t)negative << 63;
    memcpy(place, &bits, sizeof bits);
    reading->count++;
    return at;
}

/* Read the lists at `reading->at`, which is a bracket, and move past them. */
static int read_lists(Reading *reading, Tensor *tensor)
{
    Py_ssize_t sizes[MOST_DIMENSIONS]; /* How many of the lists that are open have ended in each. */
    const char *at = reading->at;
    int depth = 0;
    for (;;) {
        at = skip_space(at);
        if (*at == '[') {
            if (depth == (tensor->rank ? tensor->rank : MOST_DIMENSIONS))
                return 0;
            sizes[depth++] = 0;
            at++;
            continue;
        }
        if (!tensor->rank)
            tensor->rank = depth;
        if (depth != tensor->rank)
            return 0;
        for (Py_ssize_t size = 1;; size++) {
            if ((at = read_number(reading, tensor, at)) == NULL)
                return 0;
            at = skip_space(at);
            if (*at != ',') {
                sizes[depth - 1] = size;
                break;
            }
            at = skip_space(at + 1);
        }
        do {
            if (*at++ != ']')
                return 0;
            depth--;
            if (!tensor->shape[depth])
                tensor->shape[depth] = sizes[depth];
            if (sizes[depth] != tensor->shape[depth])
                return 0;
            if (!depth) {
                reading->at = at;
                tensor->count = reading->count - tensor->first;
                return 1;
            }
            sizes[depth - 1]++;
            at = skip_space(at);
        } while (*at != ',');
        at++;
    }
}

/* Move past a character, and the space before it. */
static int passes(Reading *reading, char c)
{
    reading->at = skip_space(reading->at);
    if (*reading->at != c)
        return 0;
    reading->at++;
    return 1;
}

/* Move past a name, and the space before it. */
static int read_name(Reading *reading, const char **name, Py_ssize_t *size)
{
    if (!passes(reading, '"'))
        return 0;
    const char *at = *name = reading->at;
    while (*at >= ' ' && *at <= '~' && *at != '"' && *at != '\\')
        at++;
    *size = at - *name;
    reading->at = at;
    return passes(reading, '"');
}

static int read_tensor(Reading *reading, const char *name, Py_ssize_t name_size)
{
    if (reading->tensor_count == MOST_TENSORS)
        return 0;
    Tensor *tensor = &reading->tensors[reading->tensor_count++];
    *tensor = (Tensor){.name = name, .name_size = name_size, .first = reading->count, .whole = 1};
    reading->at = skip_space(reading->at);
    return *reading->at == '[' && read_lists(reading, tensor);
}

/* Read an object of tensors, behind its brace. */
static int read_columns(Reading *reading)
{
    do {
        const char *name;
        Py_ssize_t size;
        if (!read_name(reading, &name, &size) || !passes(reading, ':') || !read_tensor(reading, name, size))
            return 0;
    } while (passes(reading, ','));
    return passes(reading, '}');
}

static int is_name(const char *name, Py_ssize_t size, const char *expected)
{
    return (size_t)size == strlen(expected) && memcmp(name, expected, (size_t)size) == 0;
}

static int read_body(Reading *reading)
{
    if (!passes(reading, '{'))
        return 0;
    do {
        const char *name;
        Py_ssize_t size;
        if (!read_name(reading, &name, &size) || !passes(reading, ':'))
            return 0;
        if (is_name(name, size, "signature_name")) {
            if (reading->signature_name != NULL ||
                !read_name(reading, &reading->signature_name, &reading->signature_name_size))
                return 0;
            continue;
        }
        reading->row_format = is_name(name, size, "instances");
        if (reading->tensor_count || !(reading->row_format || is_name(name, size, "inputs")))
            return 0;
        if (!reading->row_format && passes(reading, '{')) {
            if (!read_columns(reading))
                return 0;
        } else if (!read_tensor(reading, NULL, 0)) {
            return 0;
        }
    } while (passes(reading, ','));
    return passes(reading, '}') && skip_space(reading->at) == reading->end && reading->tensor_count;
}

static int read_hard(Reading *reading)
{
    for (Py_ssize_t i = 0; i < reading->hard_count; i++) {
        char *end;
        double value = PyOS_string_to_double(reading->hard[i].text, &end, NULL);
        if (value == -1.0 && PyErr_Occurred())
            return 0;
        if (value - value != 0.0)
            return 0; /* Infinite. */
        memcpy(reading->hard[i].place, &value, sizeof value);
    }
    return 1;
}

static PyObject *shape_of(const Tensor *tensor)
{
    PyObject *shape = PyTuple_New(tensor->rank);
    for (int i = 0; shape != NULL && i < tensor->rank; i++) {
        PyObject *size = PyLong_FromSsize_t(tensor->shape[i]);
        if (size == NULL || PyTuple_SetItem(shape, i, size) < 0)
            Py_CLEAR(shape);
    }
    return shape;
}

static PyObject *tensors_of(const Reading *reading)
{
    PyObject *tensors = PyTuple_New(reading->tensor_count);
    for (int i = 0; tensors != NULL && i < reading->tensor_count; i++) {
        const Tensor *tensor = &reading->tensors[i];
        PyObject *shape = shape_of(tensor);
        PyObject *described = shape == NULL ? NULL
                                            : Py_BuildValue("z#NOnn", tensor->name, tensor->name_size, shape,
                                                            tensor->whole ? Py_True : Py_False, tensor->first,
                                                            tensor->count);
        if (described == NULL || PyTuple_SetItem(tensors, i, described) < 0)
            Py_CLEAR(tensors);
    }
    return tensors;
}

/* At most how many numbers there are. */
static Py_ssize_t room_for(const char *text, Py_ssize_t size)
{
    Py_ssize_t room = 1;
    for (Py_ssize_t i = 0; i < size;) {
        Py_ssize_t stop = size - i < 255 ? size : i + 255;
        uint8_t commas = 0; /* So narrow that the compiler takes many characters at once. */
        for (; i < stop; i++)
            commas += text[i] == ',';
        room += commas;
    }
    return room;
}

PyDoc_STRVAR(read_doc, "read(body: bytes)\n"
                       "--\n\n"
                       "Return (signature name or '', whether it is the row format, tensors, numbers), or None.\n\n"
                       "tensors: of each (name or None, shape, whether int64 or else float64, first, count);\n"
                       "numbers: bytes, eight for each.");

static PyObject *json_numbers_read(PyObject *module, PyObject *body)
{
    (void)module;
    Reading reading;
    memset(&reading, 0, offsetof(Reading, tensors));
    char *text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(body, &text, &size) < 0)
        return NULL;
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, 8 * room_for(text, size));
    if (numbers == NULL) { /* Perhaps there are fewer numbers than commas. */
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    reading.at = reading.start = text;
    reading.end = text + size;
    reading.numbers = PyBytes_AsString(numbers);
    int understood;
    if (size < LARGE_BODY) {
        understood = read_body(&reading);
    } else {
        Py_BEGIN_ALLOW_THREADS understood = read_body(&reading);
        Py_END_ALLOW_THREADS
    }
    PyObject *result = NULL;
    if (understood && read_hard(&reading)) {
        PyObject *tensors = tensors_of(&reading);
        const char *name = reading.signature_name == NULL ? "" : reading.signature_name;
        if (tensors != NULL)
            result = Py_BuildValue("s#ONO", name, reading.signature_name_size,
                                   reading.row_format ? Py_True : Py_False, tensors, numbers);
    }
    free(reading.hard);
    Py_DECREF(numbers);
    if (result == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return result;
}

PyDoc_STRVAR(narrow_doc, "narrow(numbers: bytes, whole: bool, first: int, count: int)\n"
                         "--\n\n"
                         "Return some of the numbers as float32: bytes, and the place in them where they begin.\n"
                         "It is a multiple of 64 in memory. What is too large becomes infinite.");

static PyObject *json_numbers_narrow(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *numbers;
    Py_ssize_t first, count;
    int whole;
    if (!PyArg_ParseTuple(arguments, "Spnn", &numbers, &whole, &first, &count))
        return NULL;
    Py_ssize_t size = PyBytes_Size(numbers);
    if (first < 0 || count < 0 || first > size / 8 || count > size / 8 - first) {
        PyErr_SetString(PyExc_IndexError, "There are not so many numbers.");
        return NULL;
    }
    /* TensorFlow uses memory as it is if it begins at a multiple of 64 (EIGEN_MAX_ALIGN_BYTES); else it copies. */
    PyObject *narrow = PyBytes_FromStringAndSize(NULL, 4 * count + ALIGNMENT - 1);
    if (narrow == NULL)
        return NULL;
    char *start = PyBytes_AsString(narrow);
    Py_ssize_t place = (Py_ssize_t)(-(uintptr_t)start % ALIGNMENT);
    /* What is in bytes objects lies as it should for such types; `restrict` lets it be taken in groups. */
    const char *from = PyBytes_AsString(numbers);
    float *restrict to = (float *)(start + place);
    const int64_t *restrict integers = (const int64_t *)from + first;
    const double *restrict doubles = (const double *)from + first;
    for (Py_ssize_t i = 0; i < count; i++)
        to[i] = whole ? (float)(double)integers[i] : (float)doubles[i];
    return Py_BuildValue("Nn", narrow, place);
}

static PyMethodDef methods[] = {{"read", json_numbers_read, METH_O, read_doc},
                                {"narrow", json_numbers_narrow, METH_VARARGS, narrow_doc},
                                {NULL, NULL, 0, NULL}};

static int fill_powers(PyObject *module)
{
    (void)module;
    powers_of_five[0] = 1;
    for (int i = 1; i <= MOST_DIVISOR_POWER; i++)
        powers_of_five[i] = 5 * powers_of_five[i - 1];
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill_powers}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "serving._json_numbers", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__json_numbers(void);
PyMODINIT_FUNC PyInit__json_numbers(void) { return PyModuleDef_Init(&definition); }
