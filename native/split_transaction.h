/* A function of the module firebird_cdc.native._journal_files (journal_files.c). */
#ifndef FIREBIRD_CDC_SPLIT_TRANSACTION_H
#define FIREBIRD_CDC_SPLIT_TRANSACTION_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

PyObject *fbc_split_transaction(PyObject *self, PyObject *arguments);

#define FBC_SPLIT_TRANSACTION_DOC                                                                  \
    "split_transaction(content, at, uuid, number, size, events): the records of the transaction\n" \
    "at AT of CONTENT, which has that uuid, number, size up to the end of its seal and number "    \
    "of\n"                                                                                         \
    "events; each as (kind and flags, table number, start, end), the places of its body in\n"      \
    "CONTENT. None unless it is whole, and one block of BEGIN, tables and rows."

#endif
