/* What differs between versions of the engine; see engine_version.h. */
#include "engine_version.h"

struct fbc_engine_version fbc_engine_version_of(const unsigned char *text, size_t length) {
    unsigned parts[3] = {0}, count = 0;
    while (length && (*text < '0' || *text > '9'))
        text++, length--;
    for (; length && count < 3; text++, length--)
        if (*text >= '0' && *text <= '9')
            parts[count] = parts[count] * 10 + *text - '0';
        else if (*text == '.')
            count++;
        else
            break;
    return (struct fbc_engine_version){parts[0], parts[1], parts[2]};
}

int fbc_engine_announces_root(const struct fbc_engine_version *version) {
    if (version->major == 4 && version->minor == 0)
        return version->patch >= 7;
    return version->major != 5 || version->minor != 0 || version->patch >= 4;
}

const char *fbc_engine_refusal(const struct fbc_engine_version *version) {
    if (version->major != 4 || version->minor || version->patch)
        return NULL;
    /* The order of TRA_rollback there: a kill in between, and the journal's transaction counts as
     * committed. 4.0.1 turned it round. */
    return "Firebird 4.0.0 marks a transaction that is rolled back as committed before it tells us "
           "of the rollback, so that changes which never came to be could be published; upgrade "
           "the server to Firebird 4.0.1 or later";
}
