/* Writes JSON for the shipper, byte by byte what journal/events makes: row images of a journal
 * (docs/journal-format.md) as orjson writes the rows, and what stands around them; and rows of a
 * snapshot, from messages of the engine to events. Knows the values of most columns and leaves rows
 * with others, and images that are not sound, to Python. */
#include "event_json.h"

#include <string.h>
#include <time.h>

#include "little_endian.h"

enum { COLUMNS = 256, FIRST_ROOM = 1024, PLAN_HEAD = 4, PLAN_COLUMN = 8, PLAN_FIELD = 21 };

/* Tells of a column of a plan that its field has no null: a row with one is left to Python. */
static int is_required(const unsigned char *plan_column) {
    return u16(plan_column + 2) != 0;
}

/* Storage codes of columns, and the bytes of their fixed fields. */
enum { BLOB = 18, ARRAY = 19, RAW = 20 };
static const unsigned char sizes[] = {0, 2,  4, 8,  16, 4, 8, 1, 4, 4, 8,
                                      6, 10, 8, 16, 2,  2, 2, 8, 8, 2};

static int is_variable(uint32_t storage) {
    return (storage >= 15 && storage <= 17) || storage == RAW;
}

/* How a value is written; the numbers are those of journal/events/row_json.py. */
enum form { INTEGER, TRUTH, DECIMAL, UTF8, ASCII, BYTES, NOTHING };

struct value {
    const unsigned char *fixed, *bytes; /* in the image; bytes: of a variable column */
    uint32_t storage, length, pad;      /* pad: characters that a text has at least */
    int is_null;
};

struct text {
    char *data, first[FIRST_ROOM];
    size_t used, room;
};

/* Makes room for MORE bytes; NULL if there is no memory. */
static char *reserve(struct text *text, size_t more) {
    if (text->used + more > text->room) {
        size_t room = 2 * (text->used + more);
        char *data = PyMem_Malloc(room);
        if (!data)
            return NULL;
        memcpy(data, text->data, text->used);
        if (text->data != text->first)
            PyMem_Free(text->data);
        text->data = data;
        text->room = room;
    }
    return text->data + text->used;
}

static int put(struct text *text, const void *bytes, size_t length) {
    char *to = reserve(text, length);
    if (!to)
        return 0;
    memcpy(to, bytes, length);
    text->used += length;
    return 1;
}

static int64_t integer_of(const struct value *value) {
    const unsigned char *at = value->fixed;
    switch (sizes[value->storage]) {
    case 2:
        return (int16_t)u16(at);
    case 4: /* TIME has no sign */
        return value->storage == 9 ? (int64_t)u32(at) : (int32_t)u32(at);
    default:
        return (int64_t)u64(at);
    }
}

static int put_integer(struct text *text, int64_t number) {
    char digits[24], *end = digits + sizeof digits, *at = end;
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    do
        *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (number < 0)
        *--at = '-';
    return put(text, at, (size_t)(end - at));
}

static int put_base64(struct text *text, const unsigned char *bytes, size_t length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *to = reserve(text, length / 3 * 4 + 6);
    if (!to)
        return 0;
    char *start = to;
    *to++ = '"';
    for (; length >= 3; length -= 3, bytes += 3) {
        uint32_t three = (uint32_t)bytes[0] << 16 | (uint32_t)bytes[1] << 8 | bytes[2];
        for (int shift = 18; shift >= 0; shift -= 6)
            *to++ = digits[three >> shift & 63];
    }
    if (length) {
        uint32_t rest = (uint32_t)bytes[0] << 16 | (length == 2 ? (uint32_t)bytes[1] << 8 : 0);
        *to++ = digits[rest >> 18];
        *to++ = digits[rest >> 12 & 63];
        *to++ = length == 2 ? digits[rest >> 6 & 63] : '=';
        *to++ = '=';
    }
    *to++ = '"';
    text->used += (size_t)(to - start);
    return 1;
}

/* The unscaled value, in as few bytes as it needs, the highest one first. */
static int put_decimal(struct text *text, int64_t number) {
    unsigned char bytes[8];
    size_t length = 0;
    int64_t left = number;
    do {
        bytes[7 - length++] = (unsigned char)left;
        left >>= 8;
    } while (length < 8 && !(left == 0 && bytes[8 - length] < 128) &&
             !(left == -1 && bytes[8 - length] >= 128));
    return put_base64(text, bytes + 8 - length, length);
}

/* The bytes of the character of UTF-8 at AT, of which there are LEFT; 0 if there is none. */
static size_t character(const unsigned char *at, size_t left) {
    unsigned char first = at[0], low = 0x80, high = 0xBF;
    size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (length == 1)
        return 1;
    if (first < 0xC2 || first > 0xF4 || left < length)
        return 0;
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    if (at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

/* As JSON; blanks follow up to the number of characters that it has at least. -1 if it is no such
 * text, 0 without memory. */
static int put_text(struct text *text, const struct value *value, int is_ascii) {
    static const char hex[] = "0123456789abcdef";
    size_t length = value->length, characters = 0;
    char *start = reserve(text, 6 * length + value->pad + 2), *to = start;
    if (!start)
        return 0;
    *to++ = '"';
    for (size_t i = 0; i < length; characters++) {
        unsigned char byte = value->bytes[i];
        size_t size = character(value->bytes + i, length - i);
        if (!size || (is_ascii && size > 1))
            return -1;
        if (size > 1 || (byte >= ' ' && byte != '"' && byte != '\\')) {
            memcpy(to, value->bytes + i, size);
            to += size;
        } else {
            const char *at = strchr("\"\"\\\\\bb\tt\nn\ff\rr", byte);
            *to++ = '\\';
            if (byte && at) {
                *to++ = at[1];
            } else {
                memcpy(to, "u00", 3);
                to[3] = hex[byte >> 4];
                to[4] = hex[byte & 15];
                to += 5;
            }
        }
        i += size;
    }
    for (; characters < value->pad; characters++)
        *to++ = ' ';
    *to++ = '"';
    text->used += (size_t)(to - start);
    return 1;
}

/* Writes VALUE as FORM says, (value + ADD) * TIMES of an integer. Returns as put_text. */
static int put_value(struct text *text, const struct value *value, enum form form, int64_t add,
                     int64_t times) {
    int64_t number;
    if (value->is_null)
        return put(text, "null", 4);
    switch (form) {
    case INTEGER:
        if (__builtin_add_overflow(integer_of(value), add, &number) ||
            __builtin_mul_overflow(number, times, &number))
            return -1;
        return put_integer(text, number);
    case TRUTH:
        return value->fixed[0] ? put(text, "true", 4) : put(text, "false", 5);
    case DECIMAL:
        return put_decimal(text, integer_of(value));
    case UTF8:
    case ASCII:
        return put_text(text, value, form == ASCII);
    case BYTES:
        return put_base64(text, value->bytes, value->length);
    case NOTHING:
        break;
    }
    return -1;
}

/* Finds the values of an image of LENGTH bytes, whose COLUMNS are described from PLAN on; 0 if it
 * is not sound, has a BLOB, or null where a field has none. */
static int find_values(const unsigned char *image, size_t length, const unsigned char *plan,
                       uint32_t columns, struct value *values) {
    size_t bitmap = (columns + 7) / 8, fixed = bitmap;
    if (length < bitmap || (columns % 8 && image[bitmap - 1] >> columns % 8))
        return 0;
    for (uint32_t i = 0; i < columns; i++, plan += PLAN_COLUMN) {
        struct value *value = values + i;
        value->storage = u16(plan);
        value->pad = u32(plan + 4);
        if (value->storage == 0 || value->storage >= sizeof sizes)
            return 0;
        value->is_null = image[i / 8] >> i % 8 & 1;
        value->fixed = image + fixed;
        fixed += sizes[value->storage];
        if (value->is_null ? is_required(plan) : value->storage == BLOB || value->storage == ARRAY)
            return 0;
    }
    if (fixed > length)
        return 0;
    for (uint32_t i = 0; i < columns; i++) {
        struct value *value = values + i;
        if (!is_variable(value->storage))
            continue;
        value->length = u16(value->fixed);
        value->bytes = image + fixed;
        fixed += value->length;
        if (fixed > length || (value->is_null && value->length))
            return 0;
    }
    return fixed == length;
}

/* Writes the object of the fields that PLAN has behind its columns; returns as put_text. */
static int put_fields(struct text *text, const struct value *values, const unsigned char *plan,
                      size_t plan_length) {
    uint32_t columns = u16(plan), fields = u16(plan + 2);
    size_t at = PLAN_HEAD + (size_t)columns * PLAN_COLUMN;
    for (uint32_t i = 0; i < fields; i++) {
        if (plan_length - at < PLAN_FIELD)
            return -1;
        const unsigned char *field = plan + at;
        uint32_t column = u16(field), name = u16(field + 19);
        at += PLAN_FIELD + name;
        if (column >= columns || at > plan_length)
            return -1;
        if (!put(text, field + PLAN_FIELD, name))
            return 0;
        int done = put_value(text, values + column, (enum form)field[2], (int64_t)u64(field + 3),
                             (int64_t)u64(field + 11));
        if (done != 1)
            return done;
    }
    return put(text, fields ? "}" : "{}", fields ? 1 : 2);
}

/* Tells whether PLAN has a description of each of its columns. */
static int is_plan(const unsigned char *plan, size_t length) {
    if (length < PLAN_HEAD)
        return 0;
    uint32_t columns = u16(plan);
    return columns && columns <= COLUMNS && PLAN_HEAD + (size_t)columns * PLAN_COLUMN <= length;
}

/* Writes the object; returns as put_text. */
static int put_row(struct text *text, const unsigned char *image, size_t length,
                   const unsigned char *plan, size_t plan_length) {
    struct value values[COLUMNS];
    if (!is_plan(plan, plan_length) ||
        !find_values(image, length, plan + PLAN_HEAD, u16(plan), values))
        return -1;
    return put_fields(text, values, plan, plan_length);
}

static void begin(struct text *text) {
    text->data = text->first;
    text->used = 0;
    text->room = sizeof text->first;
}

/* The text as bytes, None if DONE is -1. Ends it. */
static PyObject *finish(struct text *text, int done) {
    PyObject *made = NULL;
    if (done == 1) {
        made = PyBytes_FromStringAndSize(text->data, (Py_ssize_t)text->used);
    } else if (done == -1) {
        made = Py_None;
        Py_INCREF(made);
    } else if (!PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    if (text->data != text->first)
        PyMem_Free(text->data);
    return made;
}

PyObject *fbc_row_json(PyObject *self, PyObject *arguments) {
    (void)self;
    const char *plan, *content;
    Py_ssize_t plan_length, content_length, start, end;
    if (!PyArg_ParseTuple(arguments, "y#y#nn", &plan, &plan_length, &content, &content_length,
                          &start, &end))
        return NULL;
    if (plan_length < PLAN_HEAD || start < 0 || start > end || end > content_length) {
        PyErr_SetString(PyExc_ValueError, "no plan, or no place in these bytes");
        return NULL;
    }
    struct text text;
    begin(&text);
    int done = put_row(&text, (const unsigned char *)content + start, (size_t)(end - start),
                       (const unsigned char *)plan, (size_t)plan_length);
    return finish(&text, done);
}

/* What stands in a template for a number, for bytes, and for a uuid; a text in JSON has none. */
enum { NUMBERS = 0, TEXTS = 16, UUID = 31 };

static int put_number(struct text *text, PyObject *number) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (value == -1 && PyErr_Occurred())
        return 0;
    if (!overflow)
        return put_integer(text, value);
    PyObject *digits = PyObject_Str(number);
    Py_ssize_t length;
    const char *utf8 = digits ? PyUnicode_AsUTF8AndSize(digits, &length) : NULL;
    int done = utf8 && put(text, utf8, (size_t)length);
    Py_XDECREF(digits);
    return done;
}

static int put_uuid(struct text *text, const unsigned char *uuid) {
    static const char hex[] = "0123456789abcdef";
    char *to = reserve(text, 36);
    if (!to)
        return 0;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        *to++ = hex[uuid[i] >> 4];
        *to++ = hex[uuid[i] & 15];
    }
    text->used += 36;
    return 1;
}

/* Puts what SLOT stands for; 0 with an exception, or without memory. */
static int put_slot(struct text *text, unsigned char slot, const char *uuid, PyObject *texts,
                    PyObject *numbers) {
    if (slot == UUID)
        return put_uuid(text, (const unsigned char *)uuid);
    PyObject *from = slot < TEXTS ? numbers : texts;
    PyObject *what = PyTuple_GetItem(from, slot < TEXTS ? slot : slot - TEXTS);
    if (!what)
        return 0;
    if (slot < TEXTS)
        return put_number(text, what);
    char *bytes;
    Py_ssize_t length;
    return PyBytes_AsStringAndSize(what, &bytes, &length) == 0 && put(text, bytes, (size_t)length);
}

PyObject *fbc_fill_template(PyObject *self, PyObject *arguments) {
    (void)self;
    const char *template, *uuid;
    Py_ssize_t length, uuid_length;
    PyObject *texts, *numbers;
    if (!PyArg_ParseTuple(arguments, "y#y#O!O!", &template, &length, &uuid, &uuid_length,
                          &PyTuple_Type, &texts, &PyTuple_Type, &numbers))
        return NULL;
    if (uuid_length != 16) {
        PyErr_SetString(PyExc_ValueError, "no uuid");
        return NULL;
    }
    struct text text;
    begin(&text);
    int done = 1;
    for (Py_ssize_t at = 0, from = 0; done && at <= length; at++) {
        if (at < length && (unsigned char)template[at] >= ' ')
            continue;
        done = put(&text, template + from, (size_t)(at - from));
        if (done && at < length)
            done = put_slot(&text, (unsigned char)template[at], uuid, texts, numbers);
        from = at + 1;
    }
    return finish(&text, done);
}

/* Rows of a snapshot. */

enum { LAYOUT_COLUMN = 13, SEGMENTS = 32, TEMPLATE_ROW = TEXTS + 1, TEMPLATE_POSITION = 6 };

/* How a value lies in a message; the numbers are those of journal/snapshot/quick_rows.py. */
enum lying { FIXED, VARYING, PADDED, BYTES_ALL, STAMP, CONTENT };

/* Finds the values of a message that LAYOUT describes; STAMPS has room for the times in it. 0 if it
 * has a content of a BLOB, null where a field has none, or is not sound. */
static int find_in_message(const unsigned char *message, const unsigned char *layout,
                           const unsigned char *plan, struct value *values, unsigned char *stamps) {
    static const int64_t units_per_day = 864000000;
    uint32_t columns = u16(plan);
    plan += PLAN_HEAD;
    for (uint32_t i = 0; i < columns; i++, layout += LAYOUT_COLUMN, plan += PLAN_COLUMN) {
        struct value *value = values + i;
        const unsigned char *at = message + u32(layout);
        value->storage = u16(plan);
        value->pad = u32(plan + 4);
        if (value->storage >= sizeof sizes)
            return 0;
        value->is_null = u16(message + u32(layout + 4)) != 0;
        value->fixed = value->bytes = at;
        value->length = u32(layout + 8);
        if (value->is_null && is_required(plan))
            return 0;
        if (value->is_null)
            continue;
        switch ((enum lying)layout[12]) {
        case VARYING:
            value->bytes = at + 2;
            if (u16(at) > value->length)
                return 0;
            value->length = u16(at);
            break;
        case PADDED:
            while (value->length && at[value->length - 1] == ' ')
                value->length--;
            break;
        case STAMP: {
            int64_t units = (int32_t)u32(at) * units_per_day + u32(at + 4);
            unsigned char *to = stamps + (size_t)8 * i;
            for (int byte = 0; byte < 8; byte++)
                to[byte] = (unsigned char)((uint64_t)units >> 8 * byte);
            value->fixed = to;
            break;
        }
        case CONTENT:
            return 0;
        case FIXED:
        case BYTES_ALL:
            break;
        }
    }
    return 1;
}

struct segment {
    const char *from;
    size_t length;
    int slot; /* behind it; -1: none */
};

/* Cuts TEMPLATE up at its slots; returns how many segments there are, 0 if too many. */
static int cut_up(const char *template, size_t length, struct segment *segments) {
    int count = 0;
    for (size_t at = 0, from = 0; at <= length; at++) {
        if (at < length && (unsigned char)template[at] >= ' ')
            continue;
        if (count == SEGMENTS)
            return 0;
        segments[count++] =
            (struct segment){template + from, at - from, at < length ? template[at] : -1};
        from = at + 1;
    }
    return count;
}

/* What the events of a batch share. */
struct events {
    const unsigned char *layout, *row, *key;
    size_t row_length, key_length;
    struct segment value[SEGMENTS], around_key[SEGMENTS];
    int value_segments, key_segments; /* no segments: there is no key */
    size_t room;
};

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Writes key or value of an event from its segments; returns as put_text. */
static int put_event(struct text *text, const struct segment *segments, int count,
                     const struct value *values, const unsigned char *plan, size_t plan_length,
                     int64_t position) {
    int64_t us = now_us();
    for (int i = 0; i < count; i++) {
        int slot = segments[i].slot, done = put(text, segments[i].from, segments[i].length);
        if (done == 1 && slot == TEMPLATE_ROW)
            done = put_fields(text, values, plan, plan_length);
        else if (done == 1 && slot == TEMPLATE_POSITION)
            done = put_integer(text, position);
        else if (done == 1 && slot == TEMPLATE_POSITION + 1)
            done = put_integer(text, us / 1000);
        else if (done == 1 && slot == TEMPLATE_POSITION + 2)
            done = put_integer(text, us);
        else if (slot != -1)
            return -1;
        if (done != 1)
            return done;
    }
    return 1;
}

static int append(PyObject *list, const struct text *text) {
    PyObject *bytes = PyBytes_FromStringAndSize(text->data, (Py_ssize_t)text->used);
    int done = bytes && PyList_Append(list, bytes) == 0;
    Py_XDECREF(bytes);
    return done;
}

/* Writes the event of a message, the POSITIONth row, and appends key and value to the lists;
 * returns as put_text, and adds what it has written to SIZE. */
static int put_message(const unsigned char *message, const struct events *events, int64_t position,
                       struct text *key, struct text *value, PyObject *keys, PyObject *values,
                       size_t *size) {
    struct value found[COLUMNS];
    unsigned char stamps[COLUMNS * 8];
    int done = 1;
    key->used = value->used = 0;
    if (!find_in_message(message, events->layout, events->row, found, stamps))
        return -1;
    if (events->key_segments)
        done = put_event(key, events->around_key, events->key_segments, found, events->key,
                         events->key_length, position);
    if (done == 1)
        done = put_event(value, events->value, events->value_segments, found, events->row,
                         events->row_length, position);
    if (done == 1 && key->used + value->used > events->room)
        done = -1;
    if (done != 1)
        return done;
    *size += key->used + value->used;
    if (!append(values, value))
        return 0;
    return events->key_segments ? append(keys, key) : PyList_Append(keys, Py_None) == 0;
}

/* Where it stopped: at a row that is not looked at, with the one behind it not fetched; at one that
 * is left to Python, with the one behind it fetched; or at the last one. */
enum stop { FULL, LEFT, NO_NEXT };

typedef int fetch_next(void *cursor, void *status, void *message);

int fbc_fetch_buffered(void *cursor, void *status, void *message) {
    struct fbc_buffered *rows = cursor;
    (void)status;
    if (rows->at >= rows->end && !rows->refill())
        return FBC_NO_MORE;
    memcpy(message, rows->at, rows->length);
    rows->at += rows->length;
    return 0;
}

PyObject *fbc_write_rows(PyObject *self, PyObject *arguments) {
    (void)self;
    unsigned long long fetch_at, cursor, status;
    long long position, most_rows, most_bytes, room;
    Py_buffer row, next;
    const char *layout, *row_plan, *key_plan, *template, *around_key;
    Py_ssize_t layout_length, row_length, key_length, template_length, around_length;
    PyObject *keys, *values, *made = NULL;
    if (!PyArg_ParseTuple(arguments, "(KKK)w*w*(y#y#y#y#y#L)LLLO!O!", &fetch_at, &cursor, &status,
                          &row, &next, &layout, &layout_length, &row_plan, &row_length, &key_plan,
                          &key_length, &template, &template_length, &around_key, &around_length,
                          &room, &position, &most_rows, &most_bytes, &PyList_Type, &keys,
                          &PyList_Type, &values))
        return NULL;
    struct events events = {
        .layout = (const unsigned char *)layout,
        .row = (const unsigned char *)row_plan,
        .key = (const unsigned char *)key_plan,
        .row_length = (size_t)row_length,
        .key_length = (size_t)key_length,
        .room = (size_t)room,
    };
    int has_key = around_length > 0;
    events.value_segments = cut_up(template, (size_t)template_length, events.value);
    events.key_segments =
        has_key ? cut_up(around_key, (size_t)around_length, events.around_key) : 0;
    if (!is_plan(events.row, events.row_length) || !events.value_segments ||
        (has_key && (!is_plan(events.key, events.key_length) || !events.key_segments ||
                     u16(events.key) != u16(events.row))) ||
        (size_t)layout_length != (size_t)LAYOUT_COLUMN * u16(events.row)) {
        PyErr_SetString(PyExc_ValueError, "no plan of rows");
    } else {
        fetch_next *fetch = (fetch_next *)(uintptr_t)fetch_at;
        unsigned char *at_hand = row.buf, *behind = next.buf;
        enum stop stop = FULL;
        struct text key, value;
        begin(&key);
        begin(&value);
        long long rows = 0;
        size_t size = 0;
        int done = 1;
        while (rows < most_rows && (long long)size < most_bytes) {
            stop = NO_NEXT;
            if (fetch((void *)(uintptr_t)cursor, (void *)(uintptr_t)status, behind) != 0)
                break;
            stop = LEFT;
            done =
                put_message(at_hand, &events, position + rows, &key, &value, keys, values, &size);
            if (done != 1)
                break;
            stop = FULL;
            rows++;
            unsigned char *former = at_hand;
            at_hand = behind;
            behind = former;
        }
        if (done)
            made = Py_BuildValue("Lni", rows, (Py_ssize_t)size, (int)stop);
        else if (!PyErr_Occurred())
            PyErr_NoMemory();
        if (key.data != key.first)
            PyMem_Free(key.data);
        if (value.data != value.first)
            PyMem_Free(value.data);
    }
    PyBuffer_Release(&row);
    PyBuffer_Release(&next);
    return made;
}
