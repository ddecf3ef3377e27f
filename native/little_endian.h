/* Integers as a journal has them. */
#ifndef FIREBIRD_CDC_LITTLE_ENDIAN_H
#define FIREBIRD_CDC_LITTLE_ENDIAN_H

#include <stdint.h>

static inline uint32_t u16(const unsigned char *at) {
    return at[0] | (uint32_t)at[1] << 8;
}

static inline uint32_t u32(const unsigned char *at) {
    return u16(at) | u16(at + 2) << 16;
}

static inline uint64_t u64(const unsigned char *at) {
    return u32(at) | (uint64_t)u32(at + 4) << 32;
}

#endif
