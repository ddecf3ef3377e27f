/* CRC-32C (Castagnoli), the checksum of the journal format. */
#ifndef FIREBIRD_CDC_CRC32C_H
#define FIREBIRD_CDC_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* fbc_crc32c extends CRC (0 for a new checksum) by LENGTH bytes at DATA. Never fails. */
uint32_t fbc_crc32c(uint32_t crc, const void *data, size_t length);

#endif
