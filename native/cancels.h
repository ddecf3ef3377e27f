/* The cancel of a user's statement (fb_cancel_operation, DELETE FROM MON$STATEMENTS) that one of
 * our calls met. The engine marks the attachment, and who enters it next takes the mark and fails
 * with isc_cancelled (check_database and thread_db::checkCancelState in jrd.cpp): inside a callback
 * that may be us, who are not meant. So such a call is made again, and the mark is set again for
 * the statement. */
#ifndef FIREBIRD_CDC_CANCELS_H
#define FIREBIRD_CDC_CANCELS_H

#include "firebird_abi.h"

/* fbc_cancel_taken tells whether the call that STATUS is of took a cancel: it has done nothing. */
int fbc_cancel_taken(struct fbi_status *status);

/* fbc_cancel_return gives the statement of ATTACHMENT the cancel that was meant for it. */
void fbc_cancel_return(struct fbi_attachment *attachment, struct fbi_status *status);

#endif
