/* Functions of the module firebird_cdc.native._journal_files (journal_files.c). */
#ifndef FIREBIRD_CDC_EVENT_JSON_H
#define FIREBIRD_CDC_EVENT_JSON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

PyObject *fbc_row_json(PyObject *self, PyObject *arguments);
PyObject *fbc_fill_template(PyObject *self, PyObject *arguments);

#define FBC_ROW_JSON_DOC                                                                           \
    "row_json(plan, content, start, end): the row image in CONTENT from START to END as JSON, "    \
    "as\n"                                                                                         \
    "PLAN (journal/events/row_json.py) says; None for one that is left to Python."

#define FBC_FILL_TEMPLATE_DOC                                                                      \
    "fill_template(template, uuid, texts, numbers): TEMPLATE (journal/events/templates.py) with\n" \
    "all that in its places; TEXTS and UUID are bytes."

#endif
