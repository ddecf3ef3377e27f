/* CRC-32C by the processor's own instruction where it has one (SSE 4.2), else by table. */
#include "crc32c.h"

#include <pthread.h>
#include <string.h>

static uint32_t table[256];
static int has_instruction;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? (value >> 1) ^ 0x82F63B78u : value >> 1;
        table[byte] = value;
    }
    has_instruction = __builtin_cpu_supports("sse4.2") != 0;
}

__attribute__((target("sse4.2"))) static uint32_t
by_instruction(uint32_t crc, const unsigned char *data, size_t length) {
    uint64_t value = crc;
    for (; length >= 8; length -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        value = __builtin_ia32_crc32di(value, word);
    }
    crc = (uint32_t)value;
    while (length--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}

static uint32_t by_table(uint32_t crc, const unsigned char *data, size_t length) {
    while (length--)
        crc = table[(crc ^ *data++) & 0xff] ^ (crc >> 8);
    return crc;
}

uint32_t fbc_crc32c(uint32_t crc, const void *data, size_t length) {
    pthread_once(&once, choose);
    crc = ~crc;
    crc = has_instruction ? by_instruction(crc, data, length) : by_table(crc, data, length);
    return ~crc;
}
