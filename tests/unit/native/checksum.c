/* Prints the CRC-32C of standard input, taken in pieces of the length given. */
#include <stdio.h>
#include <stdlib.h>

#include "crc32c.h"

int main(int count, char **arguments) {
    static char piece[1 << 16];
    size_t length = count == 2 ? (size_t)atol(arguments[1]) : sizeof piece, got;
    uint32_t crc = 0;
    while ((got = fread(piece, 1, length, stdin)) > 0)
        crc = fbc_crc32c(crc, piece, got);
    printf("%08x\n", crc);
    return 0;
}
