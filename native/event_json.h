/* Functions of the module firebird_cdc.native._journal_files (journal_files.c). */
#ifndef FIREBIRD_CDC_EVENT_JSON_H
#define FIREBIRD_CDC_EVENT_JSON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

PyObject *fbc_row_json(PyObject *self, PyObject *arguments);
PyObject *fbc_fill_template(PyObject *self, PyObject *arguments);
/* Rows that lie one behind the other in memory, as the engine's messages. `refill` puts others
 * there and returns 1, or 0 if there are none; it may run Python. */
struct fbc_buffered {
    const unsigned char *at, *end;
    size_t length; /* of a row */
    int (*refill)(void);
};
enum { FBC_NO_MORE = 1 };

/* fbc_fetch_buffered is a fetchNext of them, for fbc_write_rows and for ctypes. */
int fbc_fetch_buffered(void *cursor, void *status, void *message);

PyObject *fbc_write_rows(PyObject *self, PyObject *arguments);

#define FBC_ROW_JSON_DOC                                                                           \
    "row_json(plan, content, start, end): the row image in CONTENT from START to END as JSON, "    \
    "as\n"                                                                                         \
    "PLAN (journal/events/row_json.py) says; None for one that is left to Python."

#define FBC_FILL_TEMPLATE_DOC                                                                      \
    "fill_template(template, uuid, texts, numbers): TEMPLATE (journal/events/templates.py) with\n" \
    "all that in its places; TEXTS and UUID are bytes."

#define FBC_WRITE_ROWS_DOC                                                                         \
    "write_rows(cursor, row, next, plan, position, most_rows, most_bytes, keys, values): append\n" \
    "keys and values of the events of the row at hand and those behind it, as long as each has\n"  \
    "one behind it. CURSOR: addresses of fetchNext and of what it takes; ROW: the buffer of the\n" \
    "row at hand, NEXT: of the one behind it, which change places with each row. PLAN: as\n"       \
    "journal/snapshot/quick_rows.py says. Return how many rows, their bytes, and why it "          \
    "stopped:\n"                                                                                   \
    "0: they are as many as wanted, 1: the row at hand is left to Python, and the one behind it\n" \
    "is fetched, 2: there is none behind it, or it can't be fetched."

#endif
