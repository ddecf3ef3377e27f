/* What the shipper does with very many small files at a time, in one call each: reading where
 * journals stand in the history, and removing them; and calls of the system that Python lacks. A
 * Python module, firebird_cdc.native._journal_files.
 *
 * It decides nothing: a journal in which anything is unusual is left to journal/format, which
 * says what that is. Uses the stable ABI, so that one build serves every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "crc32c.h"
#include "event_json.h"
#include "journal.h"
#include "little_endian.h"
#include "split_transaction.h"

/* Of version 1 of the format. */
enum { SECTOR = 512, DATA_OFFSET = 3 * SECTOR, SEAL_PAYLOAD = 32 };

enum {
    START = 8 * 1024, /* the sectors and all of a small transaction */
    BATCH = 64,       /* files between two looks at what Python wants */
};

/* Reads up to ROOM bytes from the start of PATH; returns how many, or -1 with errno set. */
static ssize_t read_start(const char *path, unsigned char *to, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t got = 0;
    while (got < room) {
        ssize_t more = read(fd, to + got, room - got);
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0) {
            int error = errno;
            close(fd);
            errno = error;
            return -1;
        }
        if (more == 0)
            break;
        got += (size_t)more;
    }
    close(fd);
    return (ssize_t)got;
}

struct envelope {
    uint32_t epoch;
    uint64_t sequence;
    unsigned char uuid[16];
    const unsigned char *database; /* in the buffer that was read */
    size_t database_length;
};

static int sector_is_right(const unsigned char *sector, uint32_t uuid_crc) {
    return fbc_crc32c(uuid_crc, sector, SECTOR - 4) == u32(sector + SECTOR - 4);
}

/* Finds what orders a stamped journal in the SIZE bytes of its START. 0 if anything is not as in
 * nearly all journals: damaged, unstamped, or with a first block that is larger. */
static int find_envelope(const unsigned char *start, size_t size, struct envelope *found) {
    const unsigned char *mark = start + SECTOR, *stamp = start + 2 * SECTOR;
    const unsigned char *block = start + DATA_OFFSET;
    const unsigned char *payload = block + FBC_BLOCK_HEADER;
    if (size < DATA_OFFSET + FBC_BLOCK_HEADER + FBC_RECORD_HEADER + 2)
        return 0;
    uint32_t uuid_crc = fbc_crc32c(0, start + 16, 16);
    if (memcmp(start, "FBCDCJ\r\n", 8) || u16(start + 8) != 1 || u16(start + 10) != DATA_OFFSET ||
        memcmp(mark, "FBCM", 4) || memcmp(stamp, "FBCS", 4))
        return 0;
    if (!sector_is_right(start, uuid_crc) || !sector_is_right(mark, uuid_crc) ||
        !sector_is_right(stamp, uuid_crc))
        return 0;
    uint64_t transaction = u64(start + 32);
    if (u64(mark + 24) != transaction || u64(stamp + 48) != transaction)
        return 0;
    uint64_t length = u64(stamp + 32), catalogue = u64(stamp + 56);
    uint64_t end = catalogue ? catalogue : length;
    if (end < DATA_OFFSET + FBC_BLOCK_HEADER + SEAL_PAYLOAD || length > (uint64_t)1 << 62 ||
        (catalogue && end + FBC_BLOCK_HEADER >= length))
        return 0;
    uint32_t payload_length = u32(block + 4);
    if (memcmp(block, "FBCB", 4) || u64(block + 8) != DATA_OFFSET || !payload_length ||
        payload_length > size - DATA_OFFSET - FBC_BLOCK_HEADER ||
        DATA_OFFSET + FBC_BLOCK_HEADER + (uint64_t)payload_length > end ||
        u32(block + 24) != u32(start + SECTOR - 4) || (u16(block + 28) & ~3u))
        return 0;
    uint32_t crc = fbc_crc32c(uuid_crc, block, 36);
    if (fbc_crc32c(crc, payload, payload_length) != u32(block + 36))
        return 0;
    /* BEGIN: two counted texts and nothing else. */
    uint32_t body_length = u32(payload + 4);
    if (payload_length < FBC_RECORD_HEADER || u16(payload) != FBC_BEGIN || body_length < 4 ||
        body_length > payload_length - FBC_RECORD_HEADER)
        return 0;
    const unsigned char *body = payload + FBC_RECORD_HEADER;
    uint32_t database_length = u16(body);
    if (2 + database_length + 2 > body_length ||
        2 + database_length + 2 + u16(body + 2 + database_length) != body_length)
        return 0;
    found->epoch = u32(stamp + 4);
    found->sequence = u64(stamp + 8);
    memcpy(found->uuid, start + 16, 16);
    found->database = body + 2;
    found->database_length = database_length;
    return 1;
}

static PyObject *none(void) {
    Py_INCREF(Py_None);
    return Py_None;
}

/* The tuple for a journal; None if its text is none. KNOWN keeps the last database: it is nearly
 * always the same. */
static PyObject *as_tuple(const struct envelope *found, PyObject **known) {
    PyObject *database = PyUnicode_DecodeUTF8((const char *)found->database,
                                              (Py_ssize_t)found->database_length, NULL);
    if (!database) {
        PyErr_Clear();
        return none();
    }
    if (*known && PyUnicode_Compare(*known, database) == 0) {
        Py_DECREF(database);
        Py_INCREF(*known);
        database = *known;
    } else {
        Py_XDECREF(*known);
        Py_INCREF(database);
        *known = database;
    }
    return Py_BuildValue("(KKy#N)", (unsigned long long)found->epoch,
                         (unsigned long long)found->sequence, (const char *)found->uuid,
                         (Py_ssize_t)16, database);
}

/* Puts FOLDER and NAME, a str, into PATH; 0 with an exception set if that does not go. */
static int join(char *path, size_t room, const char *folder, Py_ssize_t folder_length,
                PyObject *name) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (!text)
        return 0;
    if ((size_t)(folder_length + length + 1) > room || strlen(text) != (size_t)length) {
        PyErr_SetString(PyExc_ValueError, "no name of a journal");
        return 0;
    }
    memcpy(path, folder, (size_t)folder_length);
    memcpy(path + folder_length, text, (size_t)length + 1);
    return 1;
}

static PyObject *read_envelopes(PyObject *self, PyObject *arguments) {
    (void)self;
    const char *folder;
    Py_ssize_t folder_length;
    PyObject *names;
    if (!PyArg_ParseTuple(arguments, "s#O!", &folder, &folder_length, &PyList_Type, &names))
        return NULL;
    PyObject *found = PyList_New(0), *known = NULL;
    static const size_t path_room = 4096;
    char path[4096];
    unsigned char start[START];
    for (Py_ssize_t i = 0; found && i < PyList_Size(names); i++) {
        if (!join(path, path_room, folder, folder_length, PyList_GetItem(names, i)))
            goto failed;
        struct envelope envelope;
        ssize_t size;
        Py_BEGIN_ALLOW_THREADS;
        size = read_start(path, start, sizeof start);
        Py_END_ALLOW_THREADS;
        int right = size >= 0 && find_envelope(start, (size_t)size, &envelope);
        PyObject *item = right ? as_tuple(&envelope, &known) : none();
        if (!item)
            goto failed;
        int added = PyList_Append(found, item);
        Py_DECREF(item);
        if (added < 0)
            goto failed;
    }
    Py_XDECREF(known);
    return found;
failed:
    Py_XDECREF(known);
    Py_DECREF(found);
    return NULL;
}

static PyObject *read_file_start(PyObject *self, PyObject *arguments) {
    (void)self;
    const char *path;
    if (!PyArg_ParseTuple(arguments, "s", &path))
        return NULL;
    unsigned char start[START];
    ssize_t size;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    size = read_start(path, start, sizeof start);
    error = errno;
    Py_END_ALLOW_THREADS;
    errno = error;
    if (size < 0)
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    return PyBytes_FromStringAndSize((const char *)start, size);
}

static PyObject *remove_files(PyObject *self, PyObject *arguments) {
    (void)self;
    const char *folder;
    Py_ssize_t folder_length;
    PyObject *names;
    if (!PyArg_ParseTuple(arguments, "s#O!", &folder, &folder_length, &PyList_Type, &names))
        return NULL;
    enum { NAME = 256 };
    char(*paths)[NAME] = PyMem_Malloc(BATCH * sizeof *paths);
    if (!paths)
        return PyErr_NoMemory();
    int directory = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) {
        PyMem_Free(paths);
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, folder);
    }
    Py_ssize_t count = PyList_Size(names);
    int error = 0, failed = 0;
    for (Py_ssize_t done = 0; done < count && !error && !failed; done += BATCH) {
        int size = count - done < BATCH ? (int)(count - done) : BATCH;
        for (int i = 0; i < size && !failed; i++)
            failed = !join(paths[i], NAME, "", 0, PyList_GetItem(names, done + i));
        if (failed)
            break;
        Py_BEGIN_ALLOW_THREADS;
        for (int i = 0; i < size && !error; i++)
            if (unlinkat(directory, paths[i], 0) && errno != ENOENT)
                error = errno;
        Py_END_ALLOW_THREADS;
    }
    close(directory);
    PyMem_Free(paths);
    if (failed)
        return NULL;
    if (error) {
        errno = error;
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, folder);
    }
    return none();
}

static PyObject *sync_file_system(PyObject *self, PyObject *arguments) {
    (void)self;
    int fd, failed;
    if (!PyArg_ParseTuple(arguments, "i", &fd))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    failed = syncfs(fd);
    Py_END_ALLOW_THREADS;
    return failed ? PyErr_SetFromErrno(PyExc_OSError) : none();
}

/* Take a counter of calls in a page from the ARGUMENTS; null with an error set. The caller releases
 * BUFFER. */
static void *word_in(PyObject *arguments, const char *format, Py_buffer *buffer, long long *seen,
                     int *timeout_ms) {
    Py_ssize_t offset;
    if (!PyArg_ParseTuple(arguments, format, buffer, &offset, seen, timeout_ms))
        return NULL;
    if (offset >= 0 && offset % 8 == 0 && offset + 8 <= buffer->len)
        return (char *)buffer->buf + offset;
    PyBuffer_Release(buffer);
    PyErr_SetString(PyExc_ValueError, "no counter lies there");
    return NULL;
}

static PyObject *await_word(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer page;
    long long seen;
    int timeout_ms;
    void *word = word_in(arguments, "w*nLi", &page, &seen, &timeout_ms);
    if (!word)
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    fbc_calls_await(word, (uint64_t)seen, timeout_ms);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&page);
    return none();
}

static PyObject *wake_word(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer page;
    void *word = word_in(arguments, "w*n", &page, NULL, NULL);
    if (!word)
        return NULL;
    fbc_calls_wake(word, INT_MAX);
    PyBuffer_Release(&page);
    return none();
}

static PyMethodDef methods[] = {
    {"read_envelopes", read_envelopes, METH_VARARGS,
     "read_envelopes(folder, names): for each journal (epoch, sequence, uuid, database), None for\n"
     "one that has to be looked at more closely. FOLDER ends with a slash."},
    {"read_start", read_file_start, METH_VARARGS,
     "read_start(path): the first START bytes of a file, all of it if they are fewer. Raises\n"
     "OSError."},
    {"remove_files", remove_files, METH_VARARGS,
     "remove_files(folder, names): remove them; one that is gone already is no error. Raises\n"
     "OSError at the first that can't be removed. Other threads go on meanwhile."},
    {"fill_template", fbc_fill_template, METH_VARARGS, FBC_FILL_TEMPLATE_DOC},
    {"row_json", fbc_row_json, METH_VARARGS, FBC_ROW_JSON_DOC},
    {"write_rows", fbc_write_rows, METH_VARARGS, FBC_WRITE_ROWS_DOC},
    {"split_transaction", fbc_split_transaction, METH_VARARGS, FBC_SPLIT_TRANSACTION_DOC},
    {"sync_file_system", sync_file_system, METH_VARARGS,
     "sync_file_system(fd): put all of the file system that FD is on, on disk. Raises OSError;\n"
     "os.sync tells of no error. Other threads go on meanwhile."},
    {"await_word", await_word, METH_VARARGS,
     "await_word(page, offset, seen, timeout_ms): wait until the counter at OFFSET of a shared\n"
     "mapping is another than SEEN, or less. Other threads go on meanwhile."},
    {"wake_word", wake_word, METH_VARARGS,
     "wake_word(page, offset): end all such waits, in every process."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    PyObject *address = PyLong_FromVoidPtr((void *)(uintptr_t)fbc_fetch_buffered);
    int done = address && PyModule_AddObjectRef(module, "FETCH_BUFFERED", address) == 0;
    Py_XDECREF(address);
    return done ? PyModule_AddIntConstant(module, "START", START) : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_journal_files",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__journal_files(void) {
    return PyModuleDef_Init(&definition);
}
