/* The cancel of a user's statement that one of our calls met. */
#include "cancels.h"

int fbc_cancel_taken(struct fbi_status *status) {
    if (!(status->vt->get_state(status) & FBI_STATE_ERRORS))
        return 0;
    const intptr_t *errors = status->vt->get_errors(status);
    return errors && errors[0] == FBI_ARG_GDS && errors[1] == FBI_ISC_CANCELLED;
}

void fbc_cancel_return(struct fbi_attachment *attachment, struct fbi_status *status) {
    status->vt->init(status);
    attachment->vt->cancel_operation(attachment, status, FBI_CANCEL_RAISE);
}
