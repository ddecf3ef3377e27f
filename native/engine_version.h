/* What differs between versions of the engine, by the text that it tells of itself. */
#ifndef FIREBIRD_CDC_ENGINE_VERSION_H
#define FIREBIRD_CDC_ENGINE_VERSION_H

#include <stddef.h>

struct fbc_engine_version {
    unsigned major, minor, patch;
};

/* fbc_engine_version_of reads a version such as LI-V5.0.4.1812; zeros for what is not there. */
struct fbc_engine_version fbc_engine_version_of(const unsigned char *text, size_t length);

/* fbc_engine_announces_root tells whether the engine announces the savepoint that is the
 * transaction's own: since 4.0.7 and 5.0.4. */
int fbc_engine_announces_root(const struct fbc_engine_version *version);

/* fbc_engine_refusal says why nothing can be captured from that version; null: it can. */
const char *fbc_engine_refusal(const struct fbc_engine_version *version);

#endif
