/* Takes a small transaction of a shared journal apart (docs/journal-format.md, version 2), for the
 * shipper, which reads very many. Knows those of one block that hold rows and what defines their
 * tables; all others, and those in which anything is wrong, are left to journal/format. */
#include "split_transaction.h"

#include <string.h>

#include "crc32c.h"
#include "journal.h"
#include "little_endian.h"

enum { HEAD = 136, DEFINES = 1, SEALS = 2 };

/* One that is to be read: SIZE bytes from its head to the end of its seal. */
struct transaction {
    const unsigned char *head;
    uint64_t size;
    const unsigned char *uuid;
    uint32_t uuid_crc;
};

/* Its block at OFFSET. */
struct block {
    const unsigned char *payload;
    uint32_t length, records, crc;
};

static int head_is_right(const struct transaction *of, uint64_t number) {
    const unsigned char *head = of->head;
    return !memcmp(head, "FBCDCT\r\n", 8) && u16(head + 8) == 2 && u16(head + 10) == HEAD &&
           !memcmp(head + 16, of->uuid, 16) && u64(head + 32) == number &&
           fbc_crc32c(of->uuid_crc, head, HEAD - 4) == u32(head + HEAD - 4);
}

/* Reads the block at OFFSET, which has FLAGS and continues one with the checksum PREVIOUS. 0 if
 * there is no such block. */
static int read_block(const struct transaction *of, uint64_t offset, uint32_t previous,
                      uint32_t flags, uint64_t first_event, struct block *found) {
    if (offset + FBC_BLOCK_HEADER > of->size)
        return 0;
    const unsigned char *block = of->head + offset;
    found->payload = block + FBC_BLOCK_HEADER;
    found->length = u32(block + 4);
    found->records = u32(block + 32);
    found->crc = u32(block + 36);
    if (memcmp(block, "FBCB", 4) || u64(block + 8) != offset || u64(block + 16) != first_event ||
        u32(block + 24) != previous || u16(block + 28) != flags || !found->length ||
        found->length > of->size - offset - FBC_BLOCK_HEADER)
        return 0;
    uint32_t crc = fbc_crc32c(of->uuid_crc, block, 36);
    return fbc_crc32c(crc, found->payload, found->length) == found->crc;
}

/* Counts the rows in BLOCK; -1 if there is another record than BEGIN, first, tables and rows. */
static int64_t count_rows(const struct block *block) {
    int64_t rows = 0;
    uint32_t records = 0, at = 0;
    for (; at < block->length; records++) {
        if (block->length - at < FBC_RECORD_HEADER)
            return -1;
        const unsigned char *record = block->payload + at;
        uint32_t kind = u16(record), length = u32(record + 4);
        if (length > block->length - at - FBC_RECORD_HEADER)
            return -1;
        if ((kind == FBC_BEGIN) != (records == 0) || kind < FBC_BEGIN || kind > FBC_DELETE)
            return -1;
        rows += kind >= FBC_INSERT;
        at += FBC_RECORD_HEADER + length;
    }
    return records == block->records ? rows : -1;
}

static int seal_is_right(const struct block *seal, uint64_t events, const struct block *block) {
    const unsigned char *payload = seal->payload;
    return seal->length == FBC_SEAL - FBC_BLOCK_HEADER && seal->records == 0 &&
           u64(payload) == events && u64(payload + 8) == block->records && u64(payload + 16) == 1;
}

/* The records of BLOCK, whose payload begins at START of what Python has. */
static PyObject *as_list(const struct block *block, Py_ssize_t start) {
    PyObject *records = PyList_New((Py_ssize_t)block->records);
    uint32_t at = 0;
    for (Py_ssize_t i = 0; records && i < (Py_ssize_t)block->records; i++) {
        const unsigned char *record = block->payload + at;
        Py_ssize_t body = start + at + FBC_RECORD_HEADER, length = (Py_ssize_t)u32(record + 4);
        PyObject *item = Py_BuildValue("(IInn)", u16(record), u16(record + 2), body, body + length);
        if (!item) {
            Py_DECREF(records);
            return NULL;
        }
        PyList_SetItem(records, i, item);
        at += FBC_RECORD_HEADER + (uint32_t)length;
    }
    return records;
}

PyObject *fbc_split_transaction(PyObject *self, PyObject *arguments) {
    (void)self;
    const char *content, *uuid;
    Py_ssize_t content_length, uuid_length, at;
    unsigned long long number, size, events;
    if (!PyArg_ParseTuple(arguments, "y#ny#KKK", &content, &content_length, &at, &uuid,
                          &uuid_length, &number, &size, &events))
        return NULL;
    if (uuid_length != 16 || at < 0 || at > content_length) {
        PyErr_SetString(PyExc_ValueError, "no uuid, or no place in these bytes");
        return NULL;
    }
    struct transaction of = {(const unsigned char *)content + at, size, (const unsigned char *)uuid,
                             fbc_crc32c(0, uuid, 16)};
    struct block block, seal;
    if (size < HEAD || size > (uint64_t)(content_length - at) || !head_is_right(&of, number) ||
        !read_block(&of, HEAD, of.uuid_crc, DEFINES, 1, &block) ||
        count_rows(&block) != (int64_t)events ||
        !read_block(&of, HEAD + FBC_BLOCK_HEADER + (uint64_t)block.length, block.crc, SEALS,
                    events + 1, &seal) ||
        !seal_is_right(&seal, events, &block) || seal.payload + seal.length != of.head + size)
        Py_RETURN_NONE;
    return as_list(&block, at + HEAD + FBC_BLOCK_HEADER);
}
